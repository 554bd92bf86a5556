"""Estimates how long a script of the user's own will take, from earlier runs of it or a trial: pure functions, as
`judge/estimate.py` has them for models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from velodrome.job.job import Job
from velodrome.job.script import is_length, options_of
from velodrome.judge.estimate import Estimate

#: Seconds that a script is taken to run, for planning only, of which nothing is known.
_UNKNOWN_SCRIPT = 60.0


@dataclass(frozen=True)
class Tried:
    """A trial of a script: how long the whole of it is expected to take, and for how long it was watched."""

    job: Job
    seconds: float
    watched: float


def estimate_script(
    job: Job, earlier: Iterable[tuple[Job, Mapping[str, Any]]], tried: Sequence[Tried] = ()
) -> Estimate:
    """As long as runs of the same script took, in proportion to its steps or epochs; else what a trial shows; else as
    long as it took with the nearest number of workers."""
    found: dict[int, list[float]] = {}
    for other, result in earlier:
        factor = _longer(other, job) if other.script == job.script else None
        if factor is not None:
            seconds = result["seconds"]
            whole = seconds["startup"] + (seconds["total"] - seconds["startup"]) * factor
            found.setdefault(abs(other.workers - job.workers), []).append(whole)
    if same := found.pop(0, []):
        return Estimate(median(same), "runs", len(same))
    for one in tried:
        if (one.job.workers, one.job.script, one.job.script_args) == (job.workers, job.script, job.script_args):
            return Estimate(one.seconds, "measured", max(1.0, one.watched))
    if found:
        nearest = found[min(found)]
        return Estimate(median(nearest), "other workers", len(nearest))
    return Estimate(_UNKNOWN_SCRIPT, "guess")


def _longer(one: Job, other: Job) -> float | None:
    """How many times as long the second of two jobs of a script trains; None if its arguments do not tell."""
    first, second = (options_of(job.script_args) for job in (one, other))
    if first.keys() != second.keys():
        return None
    factor = 1.0
    for name, value in first.items():
        if value == second[name]:
            continue
        try:
            factor *= float(second[name]) / float(value) if is_length(name) else math.nan
        except (ValueError, ZeroDivisionError):
            return None
    return factor if 0 < factor < math.inf else None
