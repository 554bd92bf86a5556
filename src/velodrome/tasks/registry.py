"""Finds the task of a job, of a model or of a stored result. That of scripts is here, too.

A script of the user's own loads, trains and measures by itself, and reports what it wants. Its figures are kept as it
reported them (`Counts.reported`): nothing is computed from them, and what it did not report is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from velodrome.catalog.base import SCRIPT_LABEL, Engine
from velodrome.catalog.models import is_own, task_of_model
from velodrome.data.source import Description
from velodrome.errors import BadRequest, VelodromeError, which_name
from velodrome.events.fields import MetricDefinition
from velodrome.events.result import RunResult, TestScore
from velodrome.figures import less_is_better
from velodrome.job.job import Job
from velodrome.job.values import Target
from velodrome.tasks.base import Metric, Task
from velodrome.tasks.own import OwnTask, metrics_of
from velodrome.tasks.supervised import Binary, Classification, MultiLabel, Regression
from velodrome.tasks.text import LanguageModel


class Script(Task):
    """Takes figures as they were reported."""

    name = SCRIPT_LABEL
    #: Those that most scripts report; others are kept by the names that the script gives them.
    metrics: tuple[Metric, ...] = Classification.metrics

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        reported = counts.get("reported") or {}
        first = [metric.name for metric in self.metrics if metric.name in reported]
        return {name: reported[name] for name in dict.fromkeys([*first, *reported])}

    def measured(self, counts: Mapping[str, Any] | None) -> dict[str, float | None]:
        known = {metric.name: None for metric in self.metrics}
        return {**known, **self.measure(counts or {})}

    def metrics_of(self, scores: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Whatever the script reported; of errors and losses less is better, of any other figure more."""
        known = {metric.name: metric for metric in self.metrics}
        names = self.measure({"reported": {name: value for name, value in scores.items() if name != "total"}})
        return tuple(known.get(name) or Metric(name, "less" if less_is_better(name) else "more", ".4g")
                     for name in names)

    @classmethod
    def of(cls, test: TestScore | None) -> Script:
        """The task of a result, in which the first figure of its test decides: accuracy, if that was reported."""
        script = cls()
        script.metrics = script.metrics_of(test.as_json() if test is not None else {}) or cls.metrics
        return script

    def in_words(self, counts: Mapping[str, Any] | None) -> str:
        """`accuracy 0.9731`, or the first figure that was reported."""
        values = self.measure(counts or {})
        for metric in self.metrics_of(values):
            value = values[metric.name]
            return f"{metric.name} {'not finite' if value is None else metric.text(value)}"
        return ""

    def amount(self, counts: Mapping[str, Any]) -> str:
        return super().amount(counts) if counts.get("total") else "as the script reported it"

    def summary(self, counts: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if not counts or not counts.get("reported"):
            return None
        return {**self.measure(counts), **({"total": counts["total"]} if counts["total"] else {})}

    def history(self, **parts: Mapping[str, Any]) -> dict[str, Any]:
        measured = {part: self.measure(counts) for part, counts in parts.items()}
        return {f"{part}_{name}": value for part, values in measured.items() for name, value in values.items()}

    def check(self, job: Job, about: Description) -> None:
        """Nothing is known of what a script does."""

    def check_target(self, target: Target) -> None:
        """Whether the script reports that metric shows when it runs."""

    def check_engine(self, engine: Engine) -> None:
        """Every engine runs scripts."""

    def load(self, job: Job, rank: int) -> NoReturn:
        raise VelodromeError("a script loads its own data")

    def schedule(self, job: Job, data: Any, epoch: int) -> NoReturn:
        raise VelodromeError("a script has its own schedule")

    def examples_per_step(self, job: Job) -> int:
        """Not known."""
        return 0


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


def task_of(job: Job) -> Task:
    """The task of a job: that of a script, the one that it names, or the one that its model is for."""
    if job.script is not None:
        return task(Script.name)
    return task(job.task or task_of_model(job.model))


def task_of_result(result: RunResult) -> Task:
    """The task of a stored result. Those of earlier versions do not name it."""
    return recorded_task(result.task, result.model, result.test, result.metrics or ())


def recorded_task(
    name: str | None, model: str = "", test: TestScore | None = None, metrics: Sequence[MetricDefinition] = ()
) -> Task:
    """The task of this name, if it was recorded, with the metrics that were recorded of one of the user's own; else
    that of the model, if this version has it."""
    if name == Script.name:
        return Script.of(test)
    if name in _TASKS:
        return _TASKS[name]
    if name is not None and is_own(name):
        return OwnTask(name, metrics_of(metrics))
    with suppress(BadRequest):
        return task(task_of_model(model))
    return task(LanguageModel.name if test and "perplexity" in test.model_fields_set else Classification.name)


def deciding_metrics() -> list[Metric]:
    """The metric that decides for each task, each name once."""
    return list({each.metric.name: each.metric for each in tasks()}.values())


def check_metric(target: Target, own: Sequence[Task] = ()) -> None:
    """Refuse a target on a metric that no task has; `own` are tasks of the user's beside those of Velodrome."""
    known = list(dict.fromkeys(metric.name for each in (*tasks(), *own) for metric in each.metrics))
    if target.metric not in known:
        raise BadRequest(f"--target '{target}': no task has a metric {target.metric!r}; choose {' or '.join(known)}")
