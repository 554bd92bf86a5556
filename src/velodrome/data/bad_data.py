"""Counts and names what is wrong with data, to refuse it in one sentence or to report what was left out.

Names come from outside, so they are never printed as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from velodrome.errors import BadRequest
from velodrome.printable import shown

#: How many of each kind are named.
NAMED = 10


@dataclass(frozen=True)
class Fault:
    """One kind of thing that is wrong, such as `images that cannot be read`."""

    what: str
    #: What `--bad-data skip` does with them.
    remedy: str
    count: int
    #: The first ones, each with its reason where they differ.
    first: tuple[str, ...]

    def __str__(self) -> str:
        more = f", and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        return f"{self.what}: {self.count:,} ({', '.join(self.first)}{more})"

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "remedy": self.remedy, "count": self.count, "first": list(self.first)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Fault:
        return cls(fields["what"], fields["remedy"], fields["count"], tuple(fields["first"]))


class Faults:
    """Collects what is wrong while data is read."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int, list[str]]] = {}

    def add(self, what: str, name: object, reason: str = "", *, remedy: str = "left out", count: int = 1) -> None:
        remedy, so_far, first = self._found.get(what, (remedy, 0, []))
        if len(first) < NAMED:
            first.append(f"{shown(name)}: {shown(reason)}" if reason else shown(name))
        self._found[what] = (remedy, so_far + count, first)

    def take(self, faults: Iterable[Fault]) -> None:
        """Add faults that were collected elsewhere."""
        for fault in faults:
            remedy, so_far, first = self._found.get(fault.what, (fault.remedy, 0, []))
            self._found[fault.what] = (remedy, so_far + fault.count, [*first, *fault.first][:NAMED])

    def found(self) -> tuple[Fault, ...]:
        return tuple(Fault(what, *rest[:2], tuple(rest[2])) for what, rest in self._found.items())


def refuse(name: str, faults: Sequence[Fault]) -> None:
    """End here if anything is wrong."""
    if faults:
        raise BadRequest(
            f"data set {name!r} has {'; '.join(map(str, faults))}. Repair it, or give --bad-data skip and these are "
            f"{_listed(fault.remedy for fault in faults)}"
        )


def summaries(faults: Sequence[Fault]) -> tuple[str, ...]:
    """What was done about each fault, a sentence each."""
    return tuple(f"{fault}: {fault.remedy}" for fault in faults)


def _listed(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))
