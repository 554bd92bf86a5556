"""What in a model voids the guarantee that N synchronous workers end with the weights of one. No framework here."""

from __future__ import annotations

from collections.abc import Collection

from velodrome.offers.registry import strategy_of
from velodrome.spec.job import Job
from velodrome.spec.resolve import replicas_of

#: Each reason why workers and one process differ, as a run states it.
BATCH_NORMALISATION = "batch normalisation, and each worker normalises its own part of a batch"
RANDOM_NUMBERS = "random numbers in its forward pass (dropout, augmentation), and each worker draws its own"
STATISTICS = "statistics that its forward pass changes, and they are averaged over the workers before evaluation"


def promised(job: Job) -> bool:
    """Whether a job is promised the weights of one worker by the sum of its workers' gradients: it has several, each
    with a part of a batch, that are synchronous after every step."""
    strategy = strategy_of(job)
    divided = replicas_of(job) > 1
    return divided and strategy.synchronous and strategy.exact and job.compress is None


def outside_promise(model: str, reasons: Collection[str]) -> tuple[str, ...]:
    """The sentence that a run states once about its model; none without a reason."""
    if not reasons:
        return ()
    return (
        f"model {model!r} has {'; and '.join(reasons)}: the guarantee that several synchronous workers end with the "
        "same weights as one does not hold for it",
    )
