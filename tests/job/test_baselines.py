"""The baselines of a race: each engine's `single` takes part once for each combination of the fields that affect it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from racing import planned as plan
from velodrome.job.names import expand
from velodrome.job.race import Race, combinations, parse_race
from velodrome.races.folder import RaceFolder
from velodrome.races.request import default_name, merge


def race(**content: Any) -> Race:
    return parse_race({"job": {"dataset": "digits", "engine": "torch"}, "baseline": True, **content})


def added(asked: Race) -> list[str]:
    return [entry.name for entry in expand(asked) if entry.baseline]


def test_a_race_of_strategies_gains_single_once_for_each_batch_size() -> None:
    asked = race(vary={"strategy": ["ddp", "allreduce"], "workers": [1, 2], "batch_size": [32, 64]}, repeat=2)
    assert added(asked) == [f"torch-single-1w-{size}b-{number}" for size in (32, 64) for number in (1, 2)]
    assert len(expand(asked)) == 2 * 2 * 2 * 2 + 4


def test_every_engine_has_its_own_baseline_with_the_fields_of_its_jobs() -> None:
    asked = race(job={"threads": 1, "epochs": 7, "batch_scope": "per-worker"}, vary={"entry": [
        "torch/ddp", "tensorflow/parameter-server:1"], "workers": [2]})
    found = [entry.job for entry in expand(asked) if entry.baseline]
    assert [(job.engine, job.strategy, job.workers, job.servers) for job in found] == [
        ("torch", "single", 1, 0), ("tensorflow", "single", 1, 0)]
    assert {(job.threads, job.epochs, job.batch_scope) for job in found} == {(1, 7, "global")}


def test_an_engine_without_single_has_that_of_the_engine_it_extends() -> None:
    asked = race(vary={"entry": ["deepspeed/zero1", "deepspeed/zero3", "torch/ddp"], "workers": [2]})
    found = [entry.job for entry in expand(asked) if entry.baseline]
    assert [(job.engine, job.strategy) for job in found] == [("torch", "single")]


@pytest.mark.parametrize(("job", "vary"), [
    ({"consistency": "bsp"}, {"strategy": ["ddp", "allreduce"]}),
    ({"engine": "mxnet", "strategy": "kvstore", "consistency": "asp"}, {}),
    ({"engine": "mxnet", "strategy": "kvstore"}, {"consistency": ["bsp", "asp"]}),
])
def test_a_baseline_has_no_consistency(job: dict[str, Any], vary: dict[str, Any]) -> None:
    asked = race(job={"engine": "torch", **job}, vary={**vary, "workers": [1, 2]})
    (baseline,) = (entry.job for entry in expand(asked) if entry.baseline)
    assert (baseline.strategy, baseline.consistency) == ("single", None)


@pytest.mark.parametrize("vary", [
    {"strategy": ["single", "ddp"]}, {"batch_size": [32, 64]}, {"engine": ["torch", "tensorflow"]}, {},
])
def test_nothing_is_added_where_single_is_there_or_distribution_does_not_vary(vary: dict[str, Any]) -> None:
    assert added(race(vary=vary)) == []


def test_a_baseline_changes_no_other_name() -> None:
    vary = {"strategy": ["ddp"], "workers": [2], "sharding": ["off"], "learning_rate": [0.1, 0.2]}
    with_it, without = race(vary=vary), race(vary=vary, baseline=False)
    names = [entry.name for entry in expand(without)]
    assert [entry.name for entry in expand(with_it)][: len(names)] == names
    published = {"naming": "published", "stamp": "230713-102652"}
    names = [entry.name for entry in expand(race(vary=vary, baseline=False, **published))]
    assert [entry.name for entry in expand(race(vary=vary, **published))][: len(names)] == names


def test_the_plan_names_what_was_added_and_no_baseline_leaves_it_out(runs: Path) -> None:
    words = {"vary": {"strategy": ["ddp"], "workers": [1, 2]}, "job": {"engine": "torch"}}
    planned = plan(merge(None, **words), "first", runs)
    assert planned.race.baseline is True
    assert len(planned.entries) == 3
    assert "torch/single takes part, as the baseline; --no-baseline leaves it out" in planned.notes
    alone = plan(merge(None, **words, fields={"baseline": False}), "first", runs)
    assert (len(alone.entries), [note for note in alone.notes if "baseline" in note]) == (2, [])


def test_a_race_that_began_without_a_baseline_keeps_its_jobs(runs: Path) -> None:
    """As one of an earlier version, whose race.yaml has no such field."""
    asked = merge(None, {"engine": "torch"}, {"strategy": ["ddp"], "workers": [1, 2]})
    RaceFolder(runs, "old").begin(asked)
    assert "baseline" not in (runs / "old" / "race.yaml").read_text()
    planned = plan(asked, "old", runs)
    assert [entry.job.strategy for entry in planned.entries] == ["ddp", "ddp"]
    same = merge(None, {"engine": "torch"}, {"strategy": ["ddp"], "workers": [1, 2]}, {"baseline": False})
    assert len(plan(same, "old", runs).entries) == 2


def test_a_race_resumes_with_the_baseline_that_it_began_with(runs: Path) -> None:
    asked = merge(None, {"engine": "torch"}, {"strategy": ["ddp"], "workers": [1, 2]})
    planned = plan(asked, "new", runs)
    planned.folder.begin(planned.race)
    again = plan(asked, "new", runs)
    assert again.race == planned.race
    assert [entry.name for entry in again.entries] == [entry.name for entry in planned.entries]
    assert default_name(None, asked) == default_name(None, planned.race.model_copy(update={"named_by": None}))
    without = merge(None, {"engine": "torch"}, {"strategy": ["ddp"], "workers": [1, 2]}, {"baseline": False})
    assert default_name(None, without) != default_name(None, asked)


def test_how_long_a_race_runs_does_not_change_its_name() -> None:
    vary = {"batch_size": [32, 64]}
    fields = {"repeat": 3, "until_sure": True, "budget": "20m", "max_repeat": 9, "tolerance": "3%", "grace": 2,
              "objective": "accuracy", "accuracy_margin": 0.02}
    assert default_name(None, merge(None, {}, vary)) == default_name(None, merge(None, {}, vary, fields))


def test_a_combination_that_cannot_be_gives_no_baseline() -> None:
    asked = race(vary={"strategy": ["nonsense"], "workers": [2]})
    found = combinations(asked)
    assert (found.entries, len(found.wrong)) == ([], 1)


def test_diloco_with_workers_brings_one_worker_as_control() -> None:
    """And `single` with its optimizer, where distribution varies."""
    asked = race(vary={"entry": ["torch/ddp", "torch/diloco"], "workers": [2]})
    assert added(asked) == ["torch-single-1w-128b-1", "torch-single-1w-128b-1-again", "torch-diloco-1w-128b-1"]
    jobs = {entry.name: entry.job for entry in expand(asked)}
    assert [jobs[name].optimizer for name in added(asked)] == ["adam", "adamw", "adamw"]
    fixed = race(job={"strategy": "diloco", "workers": 2, "engine": "torch"}, vary={"sync_every": [5, 9]})
    assert added(fixed) == ["torch-diloco-1w-128b-1", "torch-diloco-1w-128b-1-again"]
    assert added(race(vary={"entry": ["torch/diloco"], "workers": [1, 2]})) == ["torch-single-1w-128b-1"]
    assert added(race(vary={"entry": ["torch/local-sgd"], "workers": [2]})) == ["torch-single-1w-128b-1"]


def test_a_race_of_diloco_alone_gains_its_control_when_it_is_planned(runs: Path) -> None:
    words = {"vary": {"sync_every": [5]}, "job": {"engine": "torch", "strategy": "diloco", "workers": 2}}
    planned = plan(merge(None, **words), "first", runs)
    assert [(entry.job.workers, entry.baseline) for entry in planned.entries] == [(2, False), (1, True)]


def test_a_worker_alone_has_the_batch_of_all() -> None:
    asked = race(job={"strategy": "diloco", "workers": 3, "engine": "torch", "batch_scope": "per-worker"},
                 vary={"batch_size": [32]})  # fmt: skip
    (control,) = [entry.job for entry in expand(asked) if entry.baseline]
    assert (control.workers, control.batch_size) == (1, 96)
