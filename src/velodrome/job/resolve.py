"""Completes a job: fills in the defaults that depend on engine and strategy, refuses what is impossible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from velodrome.catalog.base import Strategy
from velodrome.catalog.models import ARRAY_MODEL, EXAMPLE_TASKS, recipe_of, task_of_model
from velodrome.catalog.registry import (
    DEFAULT_ENGINE,
    SINGLE,
    engine,
    engine_alone,
    engine_of,
    engines,
    engines_with,
    known_strategy,
    options,
    options_of,
    strategy_of,
    users_of,
)
from velodrome.errors import BadRequest
from velodrome.job.check_optimization import batch_of_step as batch_of_step
from velodrome.job.check_optimization import check_optimization, without_conflicts
from velodrome.job.job import Job, default_of, flag
from velodrome.job.script import refuse_without_script, resolve_script


def resolve(job: Job, engine: str = DEFAULT_ENGINE) -> Job:
    """The same job with every default filled in, or `BadRequest`; `engine` is that of a job that names none."""
    if job.script is not None:
        return resolve_script(job, engine)
    refuse_without_script(job)
    job = _with_task(_with_engine(job, engine))
    strategy = strategy_of(job)
    named = f"{engine_of(job).name}/{strategy.name}"
    recipe = without_conflicts(recipe_of(job.model), job, strategy)
    if strategy.optimizer is not None:
        recipe["optimizer"] = strategy.optimizer
    own = {name: value for name, value in recipe.items() if name not in job.model_fields_set}
    job = _with_options(job.model_copy(update=own), strategy, named)
    if job.implementation == "stock" and not strategy.implementation.stock:
        raise BadRequest(f"--implementation stock: strategy {named} has no stock form; {_stock_forms()}")
    models = engine_of(job).models
    # A model that the engine lacks is refused for that, and not for an option of its recipe.
    taken = own if models is not None and job.model not in models else {}
    for name in engine_of(job).without:
        if name not in taken and getattr(job, name) != default_of(name):
            raise BadRequest(f"{flag(name)}: engine {job.engine} does not support this option; leave it out, or "
                             "choose another engine")
    if job.servers and not strategy.has_servers:
        raise BadRequest(f"--servers {job.servers}: strategy {named} has no parameter servers; leave servers out")
    if strategy.max_workers is not None and job.workers > strategy.max_workers:
        several = [strategy.name for strategy in engine_of(job).strategies if strategy.max_workers is None]
        raise BadRequest(
            f"--workers {job.workers}: strategy {named} is one process; choose one that uses more workers, such as "
            f"--strategy {several[0]} (velodrome engines lists them)"
        )
    scope = job.batch_scope or ("global" if strategy.synchronous else "per-worker")
    if scope == "per-worker" and not strategy.divides_batch:
        raise BadRequest(f"--batch-scope per-worker: the workers of {named} compute the same batch; leave it out")
    if scope == "global" and job.batch_size < replicas_of(job):
        raise BadRequest(
            f"--batch-size {job.batch_size}: a global batch must hold at least one example for each of the "
            f"{job.workers} workers"
        )
    if job.target and job.validation == 0:
        raise BadRequest(f"--target {job.target!r} is measured on validation examples, but --validation 0 keeps none")
    job = job.model_copy(update=dict(strategy.complete(job)))
    check_optimization(job, strategy)
    if job.keep_going and strategy.synchronous:
        raise BadRequest(f"--keep-going: {named} is synchronous and cannot continue without one of its workers")
    return job.model_copy(
        update={
            "batch_scope": scope,
            "framework": engine_of(job).framework,
            "learning_rate": None if job.has_own_optimizer else job.rate,
            "servers": job.servers or (1 if strategy.has_servers else 0),
        }
    )


def strategy_fields() -> dict[str, Any]:
    """The fields of a job that only some strategies use, with their defaults."""
    return {option.name: option.default for option in options().values() if users_of(option)}


def _fields_of_others(engine_name: str, strategy_name: str) -> dict[str, Any]:
    """The fields of a job that only other strategies use than this one, with their defaults."""
    own = options_of(engine(engine_name), known_strategy(engine_name, strategy_name))
    return {name: default for name, default in strategy_fields().items() if options()[name] not in own}


def _with_options(job: Job, strategy: Strategy, named: str) -> Job:
    """The job with the defaults of its strategy's own fields, or `BadRequest` if it has those of another one."""
    defaults = options_of(engine_of(job), strategy)
    for option in options().values():
        users, value = users_of(option), option.of(job)
        if users and option not in defaults and value != option.default:
            raise BadRequest(f"{flag(option.name)} {value}: strategy {named} does not support this option "
                             f"({' and '.join(users)} {'does' if len(users) == 1 else 'do'}); leave it out")
    unset = {option.name: default for option, default in defaults.items() if option.of(job) == option.default}
    return job.model_copy(update=unset)


def _with_task(job: Job) -> Job:
    """The job with the task that its data is for, if it names none and that is another one than its model's; for
    arrays, with a model that takes them, if it names none."""
    from velodrome.data import catalogue

    default = task_of_model(job.model)
    if default not in EXAMPLE_TASKS:
        return job
    implied = catalogue.implied_task(job.dataset, bad_data=job.bad_data)
    if implied is not None and "model" not in job.model_fields_set:
        job = job.model_copy(update={"model": ARRAY_MODEL})
    if job.task is not None:
        return job
    return job if implied in (None, default) else job.model_copy(update={"task": implied})


def _stock_forms() -> str:
    """The strategies that have a stock form, as the end of a sentence."""
    having = [
        f"{engine.name}/{strategy.name}" for engine in engines() for strategy in engine.strategies
        if strategy.implementation.stock
    ]
    return f"these have: {', '.join(having)}" if having else "none has"


def within_limits(job: Job, engine: str = DEFAULT_ENGINE) -> Job:
    """The job with as many workers as its strategy can have."""
    if job.script is not None:
        return job
    most = strategy_of(_with_engine(job, engine)).max_workers
    return job if most is None or job.workers <= most else job.model_copy(update={"workers": most})


def _with_engine(job: Job, default: str) -> Job:
    """The job with an engine, if none was given: the default if it has the strategy and races it without being asked,
    else the first that does; if none does, any that has it."""
    if "engine" in job.model_fields_set:
        return job
    having = engines_with(job.strategy, raced=True) or engines_with(job.strategy)
    return job.model_copy(update={"engine": having[0] if having and default not in having else default})


def roles_of(job: Job) -> list[tuple[str, int]]:
    """Role and rank of every process of a resolved job, in start order."""
    return strategy_of(job).processes(job.workers, job.servers)


def replicas_of(job: Job) -> int:
    """Among how many workers, or groups of them, the examples of a job are divided."""
    strategy = strategy_of(job)
    if strategy.divides_batch:
        return job.workers
    return strategy.groups(job)


def replica_of(job: Job, rank: int) -> int:
    """The place of a worker among those: workers of one group train on the same examples."""
    return rank * replicas_of(job) // job.workers


def sharding_of(job: Job, files: int, *, synchronous: bool) -> str:
    """What `auto` selects for a job: whole files if every worker of a synchronous strategy gets one, else examples.

    `files` is 0 for data that is not stored in files.
    """
    workers = replicas_of(job)
    if job.sharding == "file" and files < workers:
        has = f"has {files}" if files else "is not stored in files"
        raise BadRequest(
            f"--sharding file: {workers} workers need at least {workers} files, but {job.dataset} {has}; "
            f"`velodrome data shard` makes more, or use --sharding data"
        )
    if job.sharding != "auto":
        return job.sharding
    return "file" if synchronous and workers > 1 and files >= workers else "data"


#: Fields of a job that have no meaning for one process.
_OF_SEVERAL = ("strategy", "consistency", "workers", "servers", "batch_scope", "sharding", "keep_going", "faults")
#: A race that varies one of these compares ways to distribute.
_DISTRIBUTION = frozenset({"engine", "strategy", "workers", "servers"})


def varies_distribution(vary: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a race compares ways to distribute."""
    names = {name for entry in vary.get("entry", ()) for name in entry} | vary.keys()
    return bool(names & _DISTRIBUTION)


def has_baselines(vary: Mapping[str, Sequence[Any]], job: Mapping[str, Any]) -> bool:
    """Whether jobs may be added to a race of this job, by what it varies."""
    return varies_distribution(vary) or job.get("strategy") in _controlled()


def _controlled() -> set[str]:
    """The names of strategies that need a control."""
    return {strategy.name for engine in engines() for strategy in engine.strategies if strategy.needs_control}


def baselines(jobs: Iterable[tuple[Job, str]]) -> Iterator[Job]:
    """The `single` job of each job and its engine, resolved; jobs that have none, or are one, are left out."""
    for job, engine_name in jobs:
        alone = engine_alone(engine_name)
        if job.strategy == SINGLE or job.script is not None or alone is None:
            continue
        dropped = {*_OF_SEVERAL, *_fields_of_others(alone, SINGLE)}
        fields = {name: value for name, value in job.model_dump(exclude_unset=True).items() if name not in dropped}
        if usual := strategy_of(job.model_copy(update={"engine": engine_name})).optimizer:
            fields.setdefault("optimizer", usual)
        single = Job.model_validate({**fields, "engine": alone, "strategy": SINGLE})
        try:
            yield resolve(single)
        except BadRequest:
            # `single` may have no stock form: then its own one is the baseline.
            yield resolve(single.model_copy(update={"implementation": "velodrome"}))


def controls(jobs: Iterable[tuple[Job, str]]) -> Iterator[Job]:
    """One worker alone of each job and its engine whose strategy needs that, resolved."""
    for job, engine_name in jobs:
        if job.workers > 1 and job.script is None and job.strategy in _controlled():
            batch = job.batch_size * (job.workers if job.batch_scope == "per-worker" else 1)
            yield resolve(job.model_copy(
                update={"engine": engine_name, "workers": 1, "batch_size": batch, "faults": []}
            ))


def alone(job: Job) -> Job:
    """The same model, data and batch in one process, resolved: what trains, without anything about distribution."""
    name = engine_alone(job.engine) or job.engine
    return resolve(job.model_copy(update={
        "engine": name, "strategy": SINGLE, "consistency": None, "workers": 1,
        "servers": 0, "implementation": "velodrome", "keep_going": False, "batch_scope": None, "sharding": "auto",
        "target": None, "faults": [],
        **_fields_of_others(name, SINGLE),
    }))
