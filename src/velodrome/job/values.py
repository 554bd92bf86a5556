"""What the texts of a request mean: targets (`accuracy>=0.97`), durations (`1h30m`), shares (`5%`) and faults
(`slow node2 4x from 10s`). Messages quote values as they would be typed, never as Python would print them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

#: Characters of a quoted value; nobody reads more of it.
_MOST = 80


def in_words(value: Any) -> str:
    """A value of a request as text: `engine=torch, workers=2` for fields, `1, 2` for a list."""
    text = _text(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def entry_in_words(entry: Any) -> str:
    """An entry of a race as `--vary` takes it, with its other fields after it: `torch/ddp, epochs=2`."""
    if not isinstance(entry, Mapping):
        return in_words(entry)
    rest = dict(entry)
    parts = []
    if "engine" in rest and "strategy" in rest:
        servers = f":{rest.pop('servers')}" if "servers" in rest else ""
        parts.append(f"{in_words(rest.pop('engine'))}/{in_words(rest.pop('strategy'))}{servers}")
    return ", ".join([*parts, *([in_words(rest)] if rest else [])]) or "no fields"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Target(BaseModel):
    """A condition on a validation metric that ends training early, such as ``accuracy>=0.97``."""

    model_config = ConfigDict(frozen=True)

    #: A metric of the job's task, which is checked where the task is known.
    metric: str
    comparison: Literal[">=", "<="]
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        match = re.fullmatch(r"\s*([A-Za-z][\w.-]*)\s*(>=|<=)\s*([0-9.eE+-]+)\s*", text)
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise ValueError(f"{text!r} is not a target: write one such as 'accuracy>=0.97' or 'loss<=0.1'")
        return cls(metric=match[1], comparison=match[2], value=value)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:g}"

    def reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Whether validation metrics, by name, meet the condition; one that is unknown or not finite does not."""
        value = metrics.get(self.metric)
        if value is None:
            return False
        return value >= self.value if self.comparison == ">=" else value <= self.value


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?")
_UNITS = (3600.0, 60.0, 1.0)


def seconds_of(value: Any) -> float:
    """A duration in seconds: `20m`, `1h30m`, `90s`, or a number; `ValueError` if it is none or not positive."""
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower().replace(" ", ""))):
        parts = [float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part]
        seconds = sum(parts) if parts else math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("write a duration of more than zero as 20m, 1h30m or 90s")
    return seconds


def share_of(value: Any) -> float:
    """A share as a fraction: `5%` or 0.05; `ValueError` if it is none between 0 and 100 %."""
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if isinstance(value, bool) or not 0 < share < 1:
        raise ValueError("write a share between 0 and 100 % as 5% or 0.05")
    return share


Action = Literal["kill", "pause", "partition", "slow"]
ACTIONS: tuple[str, ...] = get_args(Action)
EXAMPLES = "'partition node3 20s..30s', 'slow node2 4x from 10s' or 'kill worker1 at 15s'"
_TARGET = re.compile(r"[A-Za-z][\w.-]*")
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x")


@dataclass(frozen=True)
class Fault:
    """What a run is given on purpose, to a process or a host, and when.

    Seconds count from the beginning of training, so that a slow start does not move them.
    """

    text: str
    action: Action
    #: A process such as `worker1`, or a host such as `node3`.
    target: str
    #: Seconds since training began.
    start: float
    #: None if it lasts until the run ends, and for a kill.
    end: float | None = None
    #: How many times slower.
    factor: float | None = None

    def processes(self, members: Sequence[tuple[str, int, str]]) -> list[tuple[str, int]]:
        """Role and rank of the processes that it is about, of all with their role, rank and host."""
        of_host = [(role, rank) for role, rank, host in members if host == self.target]
        if of_host:
            return of_host
        return [(role, rank) for role, rank, _ in members if self.target in process_names(role, rank)]


def process_names(role: str, rank: int) -> tuple[str, ...]:
    """How a fault may call a process: `worker1`, `worker-1`, or `chief` for the first of its role."""
    return (f"{role}{rank}", f"{role}-{rank}", *((role,) if rank == 0 else ()))


def parse_fault(text: str) -> Fault:
    """Read a fault; `ValueError` with a sentence if it is none."""
    words = text.split()
    if len(words) < 3 or words[0] not in ACTIONS or not _TARGET.fullmatch(words[1]):
        raise ValueError(f"{text!r} is not a fault: write one such as {EXAMPLES}")
    action, target, rest = words[0], words[1], words[2:]
    factor = None
    if match := _FACTOR.fullmatch(rest[0]):
        factor, rest = float(match[1]), rest[1:]
    if (action == "slow") != (factor is not None) or (factor is not None and not 1 < factor <= 1000):
        raise ValueError(f"{text!r}: write how many times slower, as in 'slow node2 4x from 10s', and for 'slow' only")
    start, end = _when(text, rest)
    if action == "kill" and (len(rest) != 2 or rest[0] != "at"):
        raise ValueError(f"{text!r}: a kill happens at one moment, as in 'kill worker1 at 15s'")
    if action != "kill" and rest[0] == "at":
        raise ValueError(f"{text!r}: write from when, or from when to when, as in '{action} {target} 20s..30s'")
    return Fault(text, action, target, start, end, factor)  # type: ignore[arg-type]


def _when(text: str, words: Sequence[str]) -> tuple[float, float | None]:
    """`at 15s`, `from 15s` or `15s..30s`."""
    try:
        if len(words) == 2 and words[0] in ("at", "from"):
            return _moment(words[1]), None
        if len(words) == 1 and ".." in words[0]:
            start, _, end = words[0].partition("..")
            moments = _moment(start), _moment(end)
            if moments[0] < moments[1]:
                return moments
    except ValueError:
        pass
    raise ValueError(f"{text!r}: write when as 'at 15s', 'from 15s' or '15s..30s', in seconds since training began")


def _moment(text: str) -> float:
    seconds = 0.0 if re.fullmatch(r"0+(\.0+)?s?", text) else seconds_of(text)
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds
