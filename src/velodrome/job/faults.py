"""Faults that a run is given on purpose: `partition node3 20s..30s`, `slow node2 4x from 10s`, `kill worker1 at 15s`.

Seconds count from the beginning of training, so that a slow start does not move them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from velodrome.job.quantities import seconds_of

Action = Literal["kill", "pause", "partition", "slow"]
ACTIONS: tuple[str, ...] = get_args(Action)
EXAMPLES = "'partition node3 20s..30s', 'slow node2 4x from 10s' or 'kill worker1 at 15s'"
_TARGET = re.compile(r"[A-Za-z][\w.-]*")
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x")


@dataclass(frozen=True)
class Fault:
    """What happens to a process or a host, and when."""

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
        raise ValueError(f"{text!r} is no fault: write one such as {EXAMPLES}")
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
