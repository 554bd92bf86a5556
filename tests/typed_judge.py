"""The judge for made-up results, which are dictionaries: it gets them typed, as readers of stored runs return them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from synthetic_races import typed
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.judge import compare as comparison
from velodrome.judge import judge as judging
from velodrome.judge.compare import Row

Runs = Iterable[Mapping[str, Any]]


def as_result(run: Mapping[str, Any]) -> Result:
    """A made-up result with every field that a stored one has; of a run that has none, what its job says."""
    if isinstance(run, Result):
        return run
    if "test" not in run:
        return Result.unfinished(run["run"], run["status"], Job.model_validate(run["job"]), run["job"], Path())
    seconds = {"startup": 0.0, "train": 0.0, "evaluate": 0.0, "total": 0.0, **run["seconds"]}
    history = [{"evaluate_seconds": 0.0, **epoch} for epoch in run["history"]]
    return typed({**run, "seconds": seconds, "history": history})


def compare(runs: Runs, target: Target | None = None) -> list[Row]:
    return comparison.compare(map(as_result, runs), target)


def crashed_always(runs: Runs) -> dict[str, int]:
    return comparison.crashed_always(map(as_result, runs))


def judge(runs: Runs, *args: Any, **more: Any) -> judging.Judgement:
    return judging.judge(map(as_result, runs), *args, **more)
