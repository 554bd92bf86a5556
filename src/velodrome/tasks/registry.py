"""Finds the task of a job, of a model or of a stored result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from velodrome.catalog.models import is_own, task_of_model
from velodrome.errors import BadRequest, which_name
from velodrome.job.job import Target
from velodrome.tasks.base import Metric, Task
from velodrome.tasks.classification import Classification
from velodrome.tasks.labels import Binary, MultiLabel
from velodrome.tasks.language_model import LanguageModel
from velodrome.tasks.own import OwnTask, metrics_of
from velodrome.tasks.regression import Regression
from velodrome.tasks.script import Script


class Modelled(Protocol):
    """Whatever names a model and a task: a job."""

    @property
    def model(self) -> str: ...

    @property
    def task(self) -> str | None: ...

    @property
    def script(self) -> str | None: ...


_TASKS: dict[str, Task] = {}


def register(task: Task) -> None:
    """Make a task known by its name."""
    _TASKS[task.name] = task


register(Classification())
register(LanguageModel())
register(Regression())
register(Binary())
register(MultiLabel())
register(Script())


def tasks() -> list[Task]:
    return list(_TASKS.values())


def task(name: str) -> Task:
    """The task of a name; `module:Class` is one of the user's own."""
    if is_own(name):
        return OwnTask(name)
    if name not in _TASKS:
        raise BadRequest(f"no task {name!r}: {which_name(name, _TASKS)}, or name your own as module:Class")
    return _TASKS[name]


def task_of(job: Modelled) -> Task:
    """The task of a job: that of a script, the one that it names, or the one that its model is for."""
    if job.script is not None:
        return task(Script.name)
    return task(job.task or task_of_model(job.model))


def task_of_result(result: Mapping[str, Any]) -> Task:
    """The task of a stored result. Those of earlier versions do not name it."""
    if (name := result.get("task")) == Script.name:
        return Script.of(result)
    if name in _TASKS:
        return _TASKS[str(name)]
    if isinstance(name, str) and is_own(name):
        return OwnTask(name, metrics_of(result.get("metrics") or ()))
    with suppress(BadRequest):  # a model that this version does not have
        return task(task_of_model(str(result.get("model", ""))))
    return task(LanguageModel.name if "perplexity" in (result.get("test") or {}) else Classification.name)


def deciding_metrics() -> list[Metric]:
    """The metric that decides for each task, each name once."""
    return list({found.metric.name: found.metric for found in tasks()}.values())


def check_metric(target: Target, own: Sequence[Task] = ()) -> None:
    """Refuse a target on a metric that no task has; `own` are tasks of the user's beside those of Velodrome."""
    known = list(dict.fromkeys(metric.name for found in (*tasks(), *own) for metric in found.metrics))
    if target.metric not in known:
        raise BadRequest(f"--target '{target}': no task has a metric {target.metric!r}; choose {' or '.join(known)}")
