"""The epochs of a job: which schedule each of them follows, given its data, its sharding and its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from velodrome.errors import BadRequest
from velodrome.spec.job import Job
from velodrome.spec.resolve import batch_of_step, check_text
from velodrome.worker.context import Context
from velodrome.worker.schedule import Schedule, by_data, by_file, off
from velodrome.worker.text_schedule import TextSchedule


class Steps(Protocol):
    """What the loop needs to know of an epoch."""

    @property
    def steps(self) -> int: ...

    def examples(self, first: int, last: int) -> int: ...


def sharding_of(job: Job, files: int, *, synchronous: bool) -> str:
    """What `auto` means for a job: whole files if every worker of a synchronous strategy gets one, else examples.

    `files` is 0 for data that does not lie in files.
    """
    if job.sharding == "file" and files < job.workers:
        raise BadRequest(
            f"--sharding file: {job.workers} workers need at least {job.workers} files, and {job.dataset} has {files}; "
            f"`velodrome data shard` makes more, or use --sharding data"
        )
    if job.sharding != "auto":
        return job.sharding
    return "file" if synchronous and job.workers > 1 and files >= job.workers else "data"


def epochs_of(context: Context) -> Callable[[int], Steps]:
    """The schedule of an epoch, counted from 1."""
    job, strategy = context.job, context.strategy
    batch = batch_of_step(job, strategy)
    if context.is_text:
        workers = job.workers if strategy.synchronous else 1
        check_text(job, len(context.text.train))
        text = TextSchedule(len(context.text.train), batch, job.unroll, workers)
        return lambda epoch: text
    files = context.data.files
    policy = sharding_of(job, len(files), synchronous=strategy.synchronous)
    if strategy.synchronous:
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
    shares = [parts.share(rank) for rank in range(job.workers)]
    stream = np.concatenate([share.of(step) for step in range(parts.steps) for share in shares])
    return Schedule((stream,), (batch,))
