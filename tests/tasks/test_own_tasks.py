"""A task of the user's own: what it counts and measures, what the controller knows of it, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from velodrome.errors import BadRequest
from velodrome.events.fields import MetricDefinition
from velodrome.job.job import Job
from velodrome.job.values import Target
from velodrome.tasks.base import Counts
from velodrome.tasks.own import OwnTask
from velodrome.tasks.registry import check_metric, recorded_task, task_of

pytestmark = pytest.mark.unit


class Bare:
    def loss(self, model: Any, batch: Any) -> Any: ...


class Counting(Bare):
    better = {"recall": "more", "cost": "less"}  # noqa: RUF012

    def metrics(self, outputs: Any, batch: Any) -> Any: ...

    def measure(self, counts: dict[str, float]) -> dict[str, float]:
        return {"cost": counts["spent"] / counts["total"], "recall": counts["found"] / counts["there"]}


def learned() -> OwnTask:
    task = OwnTask("mine:Counting").bind(Counting())
    task.learn({"spent": 8.0, "found": 1, "there": 2}, 4, 2.0)
    return task


def test_the_loss_decides_where_nothing_is_said() -> None:
    task = OwnTask("mine:Bare").bind(Bare())
    task.learn({}, 4, 2.0)
    assert [metric.name for metric in task.metrics] == ["loss"]
    assert task.fields(Counts(4, 2.0)) == {"total": 4, "loss_sum": 2.0, "metrics": {"loss": 0.5}}


def test_counts_without_a_measure_are_averaged() -> None:
    class Means(Bare):
        better = {"hits": "more"}  # noqa: RUF012

        def metrics(self, outputs: Any, batch: Any) -> Any: ...

    task = OwnTask("mine:Means").bind(Means())
    task.learn({"hits": 3}, 4, 2.0)
    assert task.measured(task.fields(Counts(8, 2.0, {"hits": 6}))) == {"hits": 0.75, "loss": 0.25}


def test_the_first_metric_of_better_decides_and_events_carry_what_was_measured() -> None:
    task = learned()
    assert [(one.name, one.better) for one in task.metrics] == [("recall", "more"), ("cost", "less"), ("loss", "less")]
    assert task.counted == ("spent", "found", "there")
    fields = task.fields(Counts(10, 5.0, {"spent": 20.0, "found": 3, "there": 4}))
    assert list(fields["metrics"].items()) == [("recall", 0.75), ("cost", 2.0), ("loss", 0.5)]


def test_the_controller_reads_metrics_from_events_and_definitions_from_results() -> None:
    fields = learned().fields(Counts(10, 5.0, {"spent": 20.0, "found": 3, "there": 4}))
    here = task_of(Job(model="mine:net", task="mine:Counting"))
    assert isinstance(here, OwnTask)
    assert here.in_words(fields) == "recall 0.75"
    assert here.summary(fields) == {
        "recall": 0.75, "cost": 2.0, "loss": 0.5, "spent": 20.0, "found": 3, "there": 4, "total": 10,
    }
    assert here.history(train=fields, validation={"total": 0, "loss_sum": 0.0})["train_recall"] == 0.75
    definitions = [MetricDefinition.model_validate(each) for each in learned().definitions()]
    stored = recorded_task("mine:Counting", metrics=definitions)
    assert (stored.metric.name, stored.metric.better) == ("recall", "more")
    check_metric(Target.parse("recall>=0.5"), [stored])
    assert recorded_task("mine:Counting").metric.name == "loss"
    with pytest.raises(ValidationError):
        MetricDefinition.model_validate({"name": 3})


@pytest.mark.parametrize("measure", [
    lambda self, counts: {"cost": 1.0, "recall": counts["found"] / counts["there"]},
    lambda self, counts: {"cost": 1.0, "recall": math.exp(1000 * (2 - counts["there"]))},
    lambda self, counts: {"cost": 1.0, "recall": math.log(counts["there"])},
], ids=["division by zero", "overflow", "logarithm of zero"])
def test_a_measure_that_some_examples_do_not_allow_is_undefined_for_them(measure: Any) -> None:
    """A step of training may have no examples of a kind, whatever the whole set has."""
    task = OwnTask("mine:T").bind(type("T", (Counting,), {"measure": measure})())
    task.learn({"spent": 8.0, "found": 1, "there": 2}, 4, 2.0)
    fields = task.fields(Counts(4, 6.0, {"spent": 2.0, "found": 0, "there": 0}))
    assert fields["metrics"] == {"recall": None, "cost": None, "loss": 1.5}
    assert task.fields(Counts(4, 6.0, {"spent": 2.0, "found": 2, "there": 2}))["metrics"]["recall"] is not None


def test_what_a_measure_raises_by_itself_is_no_undefined_metric() -> None:
    def measure(self: Any, counts: dict[str, float]) -> dict[str, float]:
        if counts["there"] < 2:
            raise ValueError("two at least")
        return {"cost": 1.0, "recall": 1.0}

    task = OwnTask("mine:T").bind(type("T", (Counting,), {"measure": measure})())
    task.learn({"spent": 8.0, "found": 1, "there": 2}, 4, 2.0)
    with pytest.raises(ValueError, match="two at least"):
        task.fields(Counts(4, 6.0, {"spent": 2.0, "found": 0, "there": 0}))


def test_a_first_batch_that_counts_nothing_is_refused_by_the_line_that_counts() -> None:
    with pytest.raises(BadRequest, match=r"of loss\(\) \(test_own_tasks.py, line \d+\) is 0 for a first batch"):
        OwnTask("mine:Counting").bind(Counting()).learn({"spent": 0.0, "found": 0, "there": 0}, 0, 0.0)


def test_a_target_is_checked_where_the_metrics_are_known() -> None:
    target = Target.parse("bleu>=30")
    OwnTask("mine:Counting").check_target(target)
    with pytest.raises(BadRequest, match="has no metric 'bleu'; choose recall or cost or loss"):
        learned().check_target(target)


@pytest.mark.parametrize(("user", "words"), [
    (object(), "has no method 'loss'"),
    (type("T", (Bare,), {"better": {"x": "up"}})(), "'better' of 'T' is {'x': 'up'}"),
    (type("T", (Bare,), {"metrics": 3})(), "'metrics' of 'T' is not a method"),
])
def test_a_class_that_cannot_be_a_task_is_refused(user: object, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        OwnTask("mine:T").bind(user)
    assert words in str(refused.value)


@pytest.mark.parametrize(("measure", "words"), [
    (lambda self, counts: 3, "measure() returned 'int'; return metrics by name"),
    (lambda self, counts: {"x": "much"}, "the metric 'x' is 'str' and no number"),
    (lambda self, counts: {"x": float("inf")}, "the metric 'x' of a first batch is not a finite number"),
])
def test_metrics_that_are_no_numbers_are_refused(measure: Any, words: str) -> None:
    task = OwnTask("mine:T").bind(type("T", (Bare,), {"measure": measure})())
    with pytest.raises(BadRequest) as refused:
        task.learn({}, 1, 1.0)
    assert words in str(refused.value)


def test_a_count_may_not_hide_one_that_every_task_has() -> None:
    with pytest.raises(BadRequest, match="metrics\\(\\) returned a count 'total': choose another name"):
        OwnTask("mine:T").bind(Counting()).learn({"total": 1}, 1, 1.0)
