"""Batches of the sizes that a job has: which to try a model on, and the refusal of one that does not take them all."""

from __future__ import annotations

from velodrome.data.examples import ExampleSet
from velodrome.errors import UsersCodeFailed
from velodrome.job.job import Job
from velodrome.models.own import reason_of


def wrong_batch(model: str, size: int, full: int, error: Exception, way_out: str) -> UsersCodeFailed:
    """The refusal of a model that trains on most batches of the job, and not on those of one size."""
    return UsersCodeFailed(
        f"model {model!r} trains on batches of {full} and not on one of {size}, which the end of an epoch has: "
        f"{reason_of(error)}; {way_out}, or let the model take any batch"
    )


def way_out(job: Job, data: ExampleSet) -> str:
    """How to avoid a smaller batch at the end of an epoch."""
    if job.workers > 1:
        return "choose another --batch-size or another number of workers"
    return f"choose a --batch-size that divides the {len(data.train):,} training examples"


def other_size(data: ExampleSet, workers: int, batch: int, but: int) -> int:
    """One of the numbers of examples that a process evaluates at a time, if possible another one than `but`."""
    shares = [-(-len(part) // workers) for part in (data.test, data.validation)]
    sizes = [size for share in shares for size in (min(share, batch), share % batch) if size not in (0, but)]
    return sizes[0] if sizes else but
