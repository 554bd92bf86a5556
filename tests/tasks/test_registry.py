"""The task of a job, a model and a stored result, and what is refused when they do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from velodrome.catalog import registry
from velodrome.clusters import preflight
from velodrome.errors import BadRequest
from velodrome.events.result import TestScore as Tested
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.job.values import Target
from velodrome.tasks.registry import check_metric, deciding_metrics, recorded_task, task, task_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("model", "name"), [
    ("dense-128", "classification"), ("lstm-small", "language-model"), ("my_models:net", "classification"),
])
def test_the_model_decides_the_task(model: str, name: str) -> None:
    assert task_of(Job(model=model)).name == name


def test_an_unknown_task_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadRequest, match="no task 'poetry': choose one of classification, language-model"):
        task("poetry")


@pytest.mark.parametrize(("result", "name"), [
    ({"task": "language-model", "model": "dense-128"}, "language-model"),
    ({"model": "lstm-small", "test": None}, "language-model"),
    ({"model": "lenet5", "test": {"accuracy": 0.9}}, "classification"),
    ({"model": "gone-since", "test": {"perplexity": 90.0, "accuracy": None}}, "language-model"),
    ({"model": "gone-since", "test": {"accuracy": 0.9}}, "classification"),
    ({"task": "gone-since", "model": "lstm-small"}, "language-model"),
    ({"model": "my_models:net"}, "classification"),
    ({}, "classification"),
])
def test_results_of_earlier_versions_have_a_task_too(result: dict[str, Any], name: str) -> None:
    made = result.get("test") and Tested.model_validate(result["test"])
    assert recorded_task(result.get("task"), result.get("model", ""), made).name == name


def test_the_metrics_of_all_tasks_are_known_by_name() -> None:
    assert [metric.name for metric in deciding_metrics()] == ["accuracy", "perplexity", "mae", "f1"]
    check_metric(Target.parse("perplexity<=90"))
    with pytest.raises(BadRequest, match="no task has a metric 'bleu'; choose accuracy or loss or perplexity"):
        check_metric(Target.parse("bleu>=30"))


@pytest.mark.parametrize(("fields", "words"), [
    ({"target": "perplexity<=90"}, "classification has no metric 'perplexity'; choose accuracy or loss"),
    ({"model": "lstm-small", "dataset": "ptb", "target": "accuracy>=0.9"},
     "language-model has no metric 'accuracy'; choose perplexity or loss"),
    ({"target": "bleu>=3e1"}, "--target 'bleu>=30'"),
    ({"dataset": "ptb"}, "is text, but model 'dense-128' takes images: choose lstm-small or gpt-mini"),
    ({"model": "lstm-small"}, "reads text, and 'digits' is images: choose a text, such as ptb"),
    ({"batch_size": 100_000}, "a step would need 100,000 examples"),
    ({"model": "lstm-small", "dataset": "ptb", "batch_size": 100_000}, "choose a smaller batch, a smaller --unroll"),
    ({"model": "lstm-small", "dataset": "ptb", "sharding": "off"}, "a text is divided by its rows"),
    ({"model": "lstm-small", "dataset": "ptb", "strategy": "pipeline", "workers": 2},
     "--strategy pipeline: the layers of a language model do not follow one another in one chain"),
    ({"model": "lstm-small", "dataset": "ptb", "pixels": "byte"}, "--pixels 'byte': 'ptb' is text and has no pixels"),
])
def test_what_does_not_fit_the_task_is_refused_before_anything_starts(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        preflight.check_job(resolve(Job(**fields)))
    assert words in str(refused.value)


@pytest.mark.parametrize("engine", ["torch", "tensorflow", "accelerate", "fabric", "deepspeed"])
@pytest.mark.parametrize("name", ["classification", "language-model"])
def test_every_engine_has_its_side_of_every_task(engine: str, name: str) -> None:
    task(name).check_engine(registry.engine(engine))


def test_an_engine_without_a_side_of_the_task_is_refused() -> None:
    with pytest.raises(BadRequest, match="--engine abacus has no implementation of task 'classification'"):
        task("classification").check_engine(replace(registry.engine("torch"), name="abacus", tasks=()))


@pytest.mark.parametrize(("text", "metrics", "reached"), [
    ("accuracy>=0.97", {"accuracy": 0.97, "loss": 9.0}, True),
    ("error<=0.1", {"error": 0.2}, False),
    ("error<=0.1", {"error": 0.1}, True),
    ("error<=0.1", {"error": None}, False),
    ("error<=0.1", {}, False),
])
def test_a_target_may_name_any_metric(text: str, metrics: dict[str, float | None], reached: bool) -> None:
    assert Target.parse(text).reached(metrics) is reached
