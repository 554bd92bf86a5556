"""Refuses settings of optimization that do not go together, and computes the rate that a job's batch asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.models import recipe_of
from velodrome.catalog.registry import engine_of, engines
from velodrome.errors import BadRequest
from velodrome.job.job import Job, default_of
from velodrome.job.optimization import WEIGHTS_FILES, Span, parse_milestones

#: Fields of a recipe that are meant for its optimizer alone.
_OF_OPTIMIZER = frozenset({
    "optimizer", "learning_rate", "weight_decay", "nesterov", "schedule", "decay", "decay_after", "clip_norm"
})
#: Fields that change the learning rate in the course of training.
_OF_RATE = ("decay", "schedule", "warmup")


def without_conflicts(recipe: Mapping[str, Any], job: Job, strategy: Strategy) -> dict[str, Any]:
    """What a model of the zoo sets by default, without what the job's own settings or its strategy replace."""
    replaced: set[str] = set()
    if strategy.optimizer is not None and recipe.get("optimizer") not in (None, "adam", strategy.optimizer):
        replaced |= _OF_OPTIMIZER
    if job.schedule != "constant":
        replaced |= {"decay", "decay_after"}
    if job.has_own_optimizer:
        replaced |= {"learning_rate"}
    if strategy.keeps_rate:
        replaced |= {*_OF_RATE, "decay_after"}
    return {name: value for name, value in recipe.items() if name not in replaced}


def left_out(job: Job, strategy: Strategy) -> list[str]:
    """What the strategy of a resolved job leaves out of its model's defaults, as sentences."""
    dropped = [name for name in _OF_RATE if strategy.keeps_rate and name in recipe_of(job.model)]
    return [f"--{name} {recipe_of(job.model)[name]}, by default of model {job.model!r}, is left out: "
            f"{_keeps_rate(job, strategy)}" for name in dropped]


def _keeps_rate(job: Job, strategy: Strategy) -> str:
    return f"the servers of {job.engine}/{strategy.name} {strategy.consistency} keep the learning rate they began with"


def check_optimization(job: Job, strategy: Strategy) -> None:
    """Refuse what the optimizer or the schedule cannot do under the job's strategy."""
    if job.nesterov and job.optimizer != "momentum":
        raise BadRequest(f"--nesterov: it is a form of momentum, but --optimizer is {job.optimizer!r}; choose momentum")
    _check_own_optimizer(job, strategy)
    _check_schedule(job)
    if strategy.keeps_rate:
        _check_constant_rate(job, strategy)
    _check_engine(job, strategy)


def _check_own_optimizer(job: Job, strategy: Strategy) -> None:
    if not job.has_own_optimizer:
        return
    parts = [part for side in job.optimizer.split(":") for part in side.split(".")]
    if job.optimizer.count(":") != 1 or not all(part.isidentifier() for part in parts):
        raise BadRequest(
            f"--optimizer {job.optimizer!r}: write your own as module:function, for example my_optimizers:make"
        )
    for option, value in (("--learning-rate", job.learning_rate), ("--weight-decay", job.weight_decay)):
        if value is not None:
            raise BadRequest(f"{option} {value:g}: {job.optimizer!r} decides it, which is used as is; set it there")
    if strategy.no_own_optimizer is not None:
        raise BadRequest(
            f"--optimizer {job.optimizer!r}: {job.engine}/{strategy.name} {strategy.no_own_optimizer}, or an optimizer "
            "by name"
        )


def _check_schedule(job: Job) -> None:
    if job.decay is not None and job.schedule != "constant":
        raise BadRequest(f"--decay {job.decay:g}: --schedule {job.schedule} changes the learning rate already; use one")
    if (job.schedule == "step") != (job.milestones is not None):
        if job.milestones is None:
            raise BadRequest("--schedule step needs --milestones, such as 30epochs,60epochs")
        raise BadRequest(f"--milestones {job.milestones!r} belong to --schedule step, and it is {job.schedule!r}")
    spans = parse_milestones(job.milestones) if job.milestones else []
    if job.schedule_by == "epoch":
        options = [("--warmup", [Span.parse(job.warmup)] if job.warmup else []), ("--milestones", spans)]
        for option, several in options:
            if wrong := [span for span in several if not span.epochs or span.amount % 1]:
                raise BadRequest(
                    f"{option} {wrong[0].amount:g}: --schedule-by epoch needs whole epochs, such as 2epochs"
                )
    if any(span.epochs != following.epochs for span, following in pairwise(spans)):
        raise BadRequest(f"--milestones {job.milestones!r}: give all of them in steps, or all in epochs")
    if [span.amount for span in spans] != sorted({span.amount for span in spans}):
        raise BadRequest(f"--milestones {job.milestones!r}: each must be larger than the one before")


def _check_constant_rate(job: Job, strategy: Strategy) -> None:
    for name in _OF_RATE:
        value = getattr(job, name)
        if value != default_of(name):
            others = [str(model) for model in strategy.consistencies if model not in strategy.constant_rate]
            raise BadRequest(f"--{name} {value}: {_keeps_rate(job, strategy)}; leave it out, or choose --consistency "
                             f"{' or '.join(others)}")


def _check_engine(job: Job, strategy: Strategy) -> None:
    """Refuse a type of numbers, an optimizer or a file of weights that the engine or the strategy does not have."""
    engine = engine_of(job)
    if strategy.dtypes is not None and job.dtype not in strategy.dtypes:
        raise BadRequest(f"--dtype {job.dtype}: strategy {engine.name}/{strategy.name} computes in "
                         f"{' or '.join(strategy.dtypes)}; choose one of them, or another strategy")
    if job.dtype not in engine.dtypes:
        raise BadRequest(f"--dtype {job.dtype}: {engine.title} computes in {' or '.join(engine.dtypes)}; choose one of "
                         f"them, or {_others(lambda other: job.dtype in other.dtypes)}")
    if not _has_optimizer(engine, job):
        raise BadRequest(f"--optimizer {job.optimizer!r}: {engine.title} has {', '.join(engine.optimizers)}; choose "
                         f"one of them, or {_others(lambda other: _has_optimizer(other, job))}")
    if job.weights and not job.weights.lower().endswith(engine.weights_files):
        ending = next(each for each in WEIGHTS_FILES if job.weights.lower().endswith(each))
        raise BadRequest(
            f"--weights {job.weights!r} is a file of Keras, but {engine.title} reads {', '.join(engine.weights_files)}"
            f"; choose {_others(lambda other: ending in other.weights_files)}, or save the weights with safetensors"
        )


def _has_optimizer(engine: Engine, job: Job) -> bool:
    return engine.own_optimizers if job.has_own_optimizer else job.optimizer in engine.optimizers


def _others(able: Callable[[Engine], bool]) -> str:
    """The engines that can do something, as an option."""
    return f"--engine {' or '.join(engine.name for engine in engines() if able(engine))}"


def scale_of_rate(job: Job, strategy: Strategy) -> float:
    """What --scale-rate multiplies the learning rate of a resolved job with."""
    ratio = batch_of_step(job, strategy) / job.batch_size
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[job.scale_rate]


def batch_of_step(job: Job, strategy: Strategy) -> int:
    """Examples behind one update of the weights: of all workers for synchronous strategies, of one for others."""
    if strategy.synchronous:
        return job.accumulate * job.batch_size * (job.workers if job.batch_scope == "per-worker" else 1)
    return job.accumulate * (job.batch_size // (job.workers if job.batch_scope == "global" else 1))
