"""The learning rate of every step, as a job's schedule decides it: warm-up, then constant, cosine, linear or in steps.

Both engines are given the rates of an epoch as one vector, so that a schedule costs nothing while they train.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.registry import strategy_of
from velodrome.job.check_optimization import scale_of_rate
from velodrome.job.job import Job
from velodrome.job.optimization import Span, parse_milestones

Rates = NDArray[np.float64]


def rates_of_epoch(job: Job, epoch: int, per_epoch: int, total: int) -> Rates:
    """The rate of each step of an epoch, counted from 1, in a job of so many steps in all."""
    base = job.rate_of(epoch) * scale_of_rate(job, strategy_of(job))
    if job.schedule == "constant" and job.warmup is None:
        return np.full(per_epoch, base)
    if job.schedule_by == "epoch":
        # The same with epochs in place of steps.
        return np.full(per_epoch, base * _factors(job, np.array([epoch - 1]), 1, -(-total // per_epoch)))
    return base * _factors(job, (epoch - 1) * per_epoch + np.arange(per_epoch), per_epoch, total)


def _factors(job: Job, steps: NDArray[np.int64], per_epoch: int, total: int) -> Rates:
    """What the rate is multiplied with at steps that are counted from 0."""
    warmup = Span.parse(job.warmup).steps(per_epoch) if job.warmup is not None else 0
    done = np.clip((steps - warmup) / max(1, total - warmup), 0.0, 1.0)
    if job.schedule == "cosine":
        factors = 0.5 * (1 + np.cos(np.pi * done))
    elif job.schedule == "linear":
        factors = 1 - done
    else:
        passed = [steps >= span.steps(per_epoch) for span in parse_milestones(job.milestones or "0")]
        reached = np.sum(passed, axis=0) if job.schedule == "step" else np.zeros(len(steps))
        factors = job.milestone_factor ** reached
    return np.where(steps < warmup, (steps + 1) / max(1, warmup), factors)
