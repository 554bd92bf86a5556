"""What the controller knows of JAX, without JAX: its plan, what it refuses, its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from velodrome.catalog import registry
from velodrome.clusters import environments, preflight
from velodrome.clusters.plan import make_plan
from velodrome.errors import BadRequest, Unavailable
from velodrome.job.job import Job
from velodrome.job.race import combinations, parse_race
from velodrome.job.resolve import resolve

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("strategy", ["data-parallel", "fsdp"])
def test_every_worker_of_a_plan_knows_where_worker_0_listens(strategy: str) -> None:
    plan = make_plan("a", resolve(Job(engine="jax", strategy=strategy, workers=3)), ["a", "b"])
    assert [process.name for process in plan.processes] == ["worker 0", "worker 1", "worker 2"]
    assert plan.members[0].port > 0


@pytest.mark.parametrize(("fields", "words"), [
    ({"strategy": "ddp", "workers": 2}, "engine jax has no strategy 'ddp': choose one of single, data-parallel, fsdp"),
    ({"model": "mine:build"}, "choose one of them, or --engine tensorflow or torch"),
    ({"model": "mlp", "task": "classification"}, "engine jax has linear, "),
    ({"model": "mlp", "task": "classification"}, "or --engine tensorflow or torch"),
    ({"accumulate": 2}, "--accumulate: engine jax does not support this option"),
    ({"implementation": "stock"}, "strategy jax/single has no stock form"),
    ({"strategy": "single", "workers": 2}, "jax/single is one process"),
])
def test_what_cannot_be_is_refused_before_anything_starts(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        preflight.check_job(resolve(Job.model_validate({"engine": "jax", **fields})))
    assert words in str(refused.value)


@pytest.mark.parametrize(("model", "dataset"), [("gpt-mini", "ptb"), ("resnet20", "digits")])  # it has a weight decay
def test_other_engines_that_lack_a_model_name_those_that_have_it(model: str, dataset: str) -> None:
    with pytest.raises(BadRequest, match=r"engine mxnet has linear.*or --engine tensorflow or torch or jax"):
        preflight.check_job(resolve(Job(engine="mxnet", model=model, dataset=dataset)))


def test_without_its_environment_the_command_that_makes_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    with pytest.raises(Unavailable, match="velodrome engines install jax"):
        preflight.check_here(resolve(Job(engine="jax", strategy="fsdp", workers=2)))


def test_every_version_of_its_environment_is_pinned() -> None:
    own = registry.engine("jax").own_environment
    assert own is not None
    packages = dict(line.split("==") for line in environments.pinned_packages(own))
    assert {"jax", "jaxlib", "optax", "numpy", "safetensors"} <= packages.keys()
    assert packages["jax"] == packages["jaxlib"]


def test_a_race_of_its_strategies_gains_its_own_baseline() -> None:
    race = parse_race({"job": {"engine": "jax"}, "vary": {"strategy": ["data-parallel", "fsdp"], "workers": [2]},
                       "baseline": True})
    expanded = combinations(race)
    assert not expanded.wrong
    assert sorted(entry.job.strategy for entry in expanded.entries) == ["data-parallel", "fsdp", "single"]
