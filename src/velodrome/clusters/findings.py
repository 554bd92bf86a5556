"""What an examination of a cluster finds: one sentence each, with the host, the cause and the way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from velodrome.errors import Unavailable


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, doubtful or in order with a host, or with all of them."""

    level: Literal["error", "warning", "ok"]
    #: What was examined: tools, job, reachable, names, ports, network, versions, clock, disk, memory, data, code.
    check: str
    host: str | None
    #: The cause, without the host.
    message: str
    #: What to do about it; empty if nothing is wrong.
    fix: str = ""

    @classmethod
    def from_sentence(cls, check: str, host: str | None, sentence: str, otherwise: str = "") -> Finding:
        """An error from `'HOST' CAUSE; FIX`, or without the host; `otherwise` is the fix if the sentence has none."""
        cause, _, fix = sentence.partition("; ")
        if host is None or not cause.startswith((f"{host!r} ", f"{host!r}: ")):
            return cls("error", check, None, cause, fix or otherwise)
        cause = cause.removeprefix(repr(host))
        message = cause.removeprefix(": ") if cause.startswith(": ") else f"it{cause}"
        return cls("error", check, host, message, fix or otherwise)

    @property
    def sentence(self) -> str:
        where = f"host {self.host!r}: " if self.host else ""
        return f"{where}{self.message}" + (f"; {self.fix}" if self.fix else "")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}


def refuse(findings: Sequence[Finding]) -> None:
    """Refuse a job if there is an error: `Unavailable`, with a sentence for each."""
    wrong = [finding.sentence for finding in findings if finding.level == "error"]
    if wrong:
        raise Unavailable("; ".join(wrong), wrong)
