"""What in a model voids the guarantee that N synchronous workers end with the weights of one. No framework here."""

from __future__ import annotations

from collections.abc import Collection

from velodrome.catalog.engines.torch import MICRO_BATCHES
from velodrome.catalog.models import zoo_model
from velodrome.catalog.registry import strategy_of
from velodrome.job.job import Job
from velodrome.job.resolve import replicas_of

#: Each reason why workers and one process differ, as a run states it.
BATCH_NORMALISATION = "batch normalisation, which normalises each part of a batch by itself"
RANDOM_NUMBERS = "random numbers in its forward pass (dropout, augmentation), and each worker draws its own"
STATISTICS = "statistics that its forward pass changes, and they are averaged over the workers before evaluation"


def claims_equivalence(job: Job) -> bool:
    """Whether a job should end with the weights of one worker because gradients are summed: those of several
    synchronous workers, each with a part of a batch, or those of a pipeline's micro-batches."""
    strategy = strategy_of(job)
    divided = replicas_of(job) > 1 or (MICRO_BATCHES.of(job) or 1) > 1
    return divided and strategy.synchronous and strategy.exact and all(
        option.exact or option.of(job) is None for option in strategy.options
    )


def zoo_differences(name: str) -> list[str]:
    """Those of a model that comes with Velodrome, for engines that cannot look into theirs."""
    model = zoo_model(name)
    reasons = {BATCH_NORMALISATION: model.normalises, RANDOM_NUMBERS: model.draws}
    return [reason for reason, holds in reasons.items() if holds]


def equivalence_warnings(model: str, reasons: Collection[str]) -> tuple[str, ...]:
    """The sentence that a run states once about its model; none without a reason."""
    if not reasons:
        return ()
    return (
        f"model {model!r} has {'; and '.join(reasons)}: the guarantee that several synchronous workers end with the "
        "same weights as one does not hold for it",
    )
