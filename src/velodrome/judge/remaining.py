"""How much longer running jobs will take: from their progress, or, of a script, from what it reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from velodrome.events.models import ProgressEvent
from velodrome.job.job import Job
from velodrome.job.script import is_length, options_of
from velodrome.judge.estimate import Estimate, in_words


def steps_done(job: Job, progress: ProgressEvent, per_epoch: int) -> tuple[int, int]:
    """Steps that a job has done at a progress event, and its total; 0 if that is not known."""
    if job.script is not None:
        return progress.step, 0
    total = job.epochs * per_epoch
    return (progress.epoch - 1) * per_epoch + progress.step, min(total, job.steps) if job.steps else total


@dataclass(frozen=True)
class Progress:
    """A job of a race, while the race runs: what it was expected to take, and what it took."""

    expected: float
    ended: bool
    #: Of its training, from 0 to 1.
    share: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Remaining:
    """What is left of a race."""

    jobs: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.jobs} to go, about {in_words(self.seconds)}"


def remaining(jobs: Iterable[Progress]) -> Remaining:
    """Jobs to come and the seconds that they will take, corrected by how the ones so far did against expectation."""
    members = list(jobs)
    ended = [one for one in members if one.ended]
    spent, expected = sum(one.seconds for one in ended), sum(one.expected for one in ended)
    ahead = [one.expected * (1 - one.share) for one in members if not one.ended]
    return Remaining(len(ahead), sum(ahead) * (spent / expected if expected > 0 and spent > 0 else 1.0))


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
