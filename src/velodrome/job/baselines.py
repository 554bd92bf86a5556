"""The baselines of a race: the `single` of each engine with the fields of the jobs that are distributed, so that a
verdict can tell whether distributing pays; and one worker alone of strategies that gain by something else too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from velodrome.catalog.registry import SINGLE, engine_alone, engines, strategy_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve, strategy_fields

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
    return {one.name for engine in engines() for one in engine.strategies if one.needs_control}


def baselines(jobs: Iterable[tuple[Job, str]]) -> Iterator[Job]:
    """The `single` job of each job and its engine, resolved; jobs that have none, or are one, are left out."""
    for job, engine in jobs:
        alone = engine_alone(engine)
        if job.strategy == SINGLE or job.script is not None or alone is None:
            continue
        dropped = {*_OF_SEVERAL, *strategy_fields()}
        fields = {name: value for name, value in job.model_dump(exclude_unset=True).items() if name not in dropped}
        if usual := strategy_of(job.model_copy(update={"engine": engine})).optimizer:
            fields.setdefault("optimizer", usual)
        single = Job.model_validate({**fields, "engine": alone, "strategy": SINGLE})
        try:
            yield resolve(single)
        except BadRequest:
            # `single` may have no stock form: then its own one is the baseline.
            yield resolve(single.model_copy(update={"implementation": "velodrome"}))


def controls(jobs: Iterable[tuple[Job, str]]) -> Iterator[Job]:
    """One worker alone of each job and its engine whose strategy needs that, resolved."""
    for job, engine in jobs:
        if job.workers > 1 and job.script is None and job.strategy in _controlled():
            batch = job.batch_size * (job.workers if job.batch_scope == "per-worker" else 1)
            yield resolve(job.model_copy(update={"engine": engine, "workers": 1, "batch_size": batch, "faults": []}))
