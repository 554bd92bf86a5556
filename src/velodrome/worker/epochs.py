"""The epochs of a job: which schedule each of them follows, given its data, its sharding and its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from velodrome.spec.resolve import batch_of_step, check_text, sharding_of
from velodrome.tasks.schedule import Schedule, by_data, by_file, off
from velodrome.tasks.text_schedule import TextSchedule
from velodrome.worker.context import Context


class Steps(Protocol):
    """What the loop needs to know of an epoch."""

    @property
    def steps(self) -> int: ...

    def examples(self, first: int, last: int) -> int: ...


def epochs_of(context: Context) -> Callable[[int], Steps]:
    """The schedule of an epoch, counted from 1."""
    job, strategy = context.job, context.strategy
    batch = batch_of_step(job, strategy)
    if context.is_text:
        workers, groups = (job.workers, 1) if strategy.synchronous else (1, job.workers)
        check_text(job, len(context.text.train))
        text = TextSchedule(len(context.text.train), batch, job.unroll, workers, groups)
        left_out = len(context.text.train) - 1 - text.examples(0, text.steps)
        if left_out and context.is_chief:
            context.events.emit("warning", message=(
                f"{left_out:,} of {len(context.text.train):,} words are left out in every epoch: {batch * groups} rows "
                f"of equal length, read {job.unroll} words at a time, do not hold them"
            ))
        return lambda epoch: text
    files = context.data.files
    policy = sharding_of(job, len(files), synchronous=strategy.synchronous)
    if strategy.synchronous:
        first = _synchronous(context, policy, batch, 1)
        if policy == "file" and first.uneven_steps() and context.is_chief:
            context.events.emit("warning", message=(
                f"{first.uneven_steps()} of {first.steps} steps of an epoch leave a worker without examples: "
                f"{len(files)} files are not the same for each of {job.workers} workers; nothing is dropped"
            ))
        return lambda epoch: _synchronous(context, policy, batch, epoch)
    return lambda epoch: _handed_out(context, policy, batch, epoch)


def _synchronous(context: Context, policy: str, batch: int, epoch: int) -> Schedule:
    job, data = context.job, context.data
    if policy == "file":
        return by_file(data.files, batch, job.workers, job.seed, epoch, own=data.own_files)
    make = off if policy == "off" else by_data
    return make(len(data.train), batch, job.workers, job.seed, epoch)


def _handed_out(context: Context, policy: str, batch: int, epoch: int) -> Schedule:
    """One stream that a chief deals out to whoever is free, made so that its batches follow the policy."""
    job, data = context.job, context.data
    if policy == "data":
        return by_data(len(data.train), batch, 1, job.seed, epoch)
    if policy == "file":
        parts = by_file(data.files, batch * job.workers, job.workers, job.seed, epoch, own=False)
    else:
        parts = off(len(data.train), batch * job.workers, job.workers, job.seed, epoch)
    partitions = [parts.partition(rank) for rank in range(job.workers)]
    batches = [partition.step(step) for step in range(parts.steps) for partition in partitions]
    # What is left over of a worker comes last: before, it would move all batches after it across workers.
    stream = np.concatenate(sorted(batches, key=lambda some: len(some) < batch))
    return Schedule((stream,), (batch,))
