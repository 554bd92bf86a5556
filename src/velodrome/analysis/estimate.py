"""Estimates how long a job will take: from similar runs if there are any, else from a rough table.

For planning only; no estimate enters a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from velodrome.events.models import ProgressEvent
from velodrome.spec.job import Job
from velodrome.tasks.registry import task_of

#: Examples of 28×28 pixels that one core trains in a second, in round numbers.
_RATE = {"linear": 120_000, "dense-128": 70_000, "dense-300-100": 30_000, "lenet5": 2_500}
_UNKNOWN_RATE = 2_000
#: Seconds from the command to the first step.
_START_COLD = {"tensorflow": 8.0, "torch": 4.0}
_START_WARM = {"tensorflow": 2.5, "torch": 1.0}
_UNKNOWN_START = 5.0
#: Seconds that a script is taken to run of which nothing is known.
_UNKNOWN_SCRIPT = 60.0


@dataclass(frozen=True)
class Estimate:
    """Seconds, and whether they rest on runs that were measured."""

    seconds: float
    measured: bool


def _key(source: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(source[name] for name in ("dataset", "model", "engine", "strategy", "workers"))


def estimate(
    job: Job, examples: int | None, pixels: int | None, cores: int, earlier: Iterable[Mapping[str, Any]], *, warm: bool
) -> Estimate:
    """Seconds that a job will take; `earlier` are results of finished runs."""
    if job.script is not None:
        return _of_script(job, earlier)
    start = (_START_WARM if warm else _START_COLD).get(job.engine, _UNKNOWN_START)
    examples = examples or 50_000
    amount = float(job.epochs * examples)
    if job.steps:
        amount = min(amount, job.steps * task_of(job).examples_per_step(job))
    like = [r for r in earlier if _key(r) == _key(job.model_dump()) and r["throughput"]["examples_per_second"]]
    if like:
        rate = median(result["throughput"]["examples_per_second"] for result in like)
        return Estimate(start + amount / rate, measured=True)
    processes = job.workers + job.servers
    rate = _RATE.get(job.model, _UNKNOWN_RATE) * min(1.0, 784 / (pixels or 784)) ** 0.5
    rate *= max(1, min(job.workers, cores)) * (0.6 if job.workers > 1 else 1.0)
    # More processes than cores also start one after another.
    return Estimate(start * max(1.0, processes / max(1, cores)) + amount / rate, measured=False)


def _of_script(job: Job, earlier: Iterable[Mapping[str, Any]]) -> Estimate:
    """As long as runs of the same script took; nothing is known of one that never ran."""
    like = [r["seconds"]["total"] for r in earlier if _key(r) == _key(job.model_dump())]
    return Estimate(median(like), measured=True) if like else Estimate(_UNKNOWN_SCRIPT, measured=False)


def steps_done(job: Job, progress: ProgressEvent, per_epoch: int) -> tuple[int, int]:
    """Steps that a job has done at a progress event, and its total; 0 if that is not known."""
    if job.script is not None:
        return progress.step, 0
    total = job.epochs * per_epoch
    return (progress.epoch - 1) * per_epoch + progress.step, min(total, job.steps) if job.steps else total


def remaining(estimates: Iterable[float], spent: float, expected: float) -> float:
    """Seconds that the jobs to come will take, corrected by how the ones so far did against what was expected."""
    ahead = sum(estimates)
    return ahead * (spent / expected) if expected > 0 and spent > 0 else ahead


def in_words(seconds: float) -> str:
    """A duration as text, rounded."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 5400:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
