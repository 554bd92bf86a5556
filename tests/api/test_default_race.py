"""`velodrome race` with nothing to vary: every strategy that can train the model here, or the race of that name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import racing
from velodrome.catalog.registry import engines
from velodrome.clusters import environments, preflight
from velodrome.errors import BadRequest
from velodrome.races import check
from velodrome.races.check import BUDGET
from velodrome.races.plan import PlannedRace
from velodrome.races.request import default_name, merge


@pytest.fixture(autouse=True)
def _roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**50)
    monkeypatch.setattr(check, "cores", lambda: 4)


def planned(runs: Path, job: dict[str, Any], name: str | None = None, **fields: Any) -> PlannedRace:
    asked = merge(None, job, {}, fields)
    return racing.planned(asked, name or default_name(None, asked), runs, complete=True)


def shown(plan: PlannedRace) -> set[tuple[str, str, int, int]]:
    jobs = [entry.job for entry in plan.entries]
    return {(job.engine, job.strategy, job.workers, job.servers) for job in jobs}


def test_every_strategy_takes_part_until_one_is_best(runs: Path) -> None:
    plan = planned(runs, {"model": "linear"})
    here = {
        (engine.name, one.name) for engine in engines() for one in engine.strategies
        if not environments.missing(engine, one) and one.not_raced is None
    }
    assert {found[:2] for found in shown(plan)} == here
    assert ("torch", "single", 1, 0) in shown(plan)
    assert {found for found in shown(plan) if found[1] == "ddp"} == {("torch", "ddp", 4, 0)}, "one is single"
    if ("tensorflow", "parameter-server") in here:
        assert {("tensorflow", "parameter-server", workers, 1) for workers in (1, 4)} <= shown(plan)
    assert (plan.race.until_sure, plan.race.budget) == (True, BUDGET)
    assert any(note.startswith("left out: ") and "needs a TPU" in note for note in plan.notes)
    assert ("torch", "fsdp", 4, 0) in shown(plan)
    for names in ("torch/local-sgd, torch/diloco", "torch/pipeline, torch/tensor"):
        assert any(note.startswith(f"left out: {names}: ") for note in plan.notes)
    assert len(plan.certain) == plan.configurations


def test_fields_that_are_given_are_the_same_for_all(runs: Path) -> None:
    assert {found[0] for found in shown(planned(runs, {"engine": "torch"}))} == {"torch"}
    assert shown(planned(runs, {"engine": "torch", "strategy": "ddp"})) == {
        ("torch", "ddp", 4, 0), ("torch", "ddp", 1, 0), ("torch", "single", 1, 0)}
    assert ("torch", "ddp", 3, 0) in shown(planned(runs, {"engine": "torch", "workers": 3}))
    plan = planned(runs, {"engine": "torch"}, budget="3m", repeat=2)
    assert (plan.race.budget, plan.race.repeat) == (180.0, 2)
    fixed = planned(runs, {"engine": "torch"}, until_sure=False)
    assert (fixed.race.until_sure, len(fixed.entries)) == (False, 5)
    named = planned(runs, {"engine": "torch", "strategy": "diloco"})
    assert shown(named) == {("torch", "diloco", 4, 0), ("torch", "diloco", 1, 0), ("torch", "single", 1, 0)}


def test_a_consistency_is_that_of_the_strategies_that_have_it_and_single_is_the_baseline(runs: Path) -> None:
    plan = planned(runs, {"engine": "torch", "consistency": "bsp"})
    assert {found[1] for found in shown(plan)} == {"single", "ddp", "allreduce", "zero1", "fsdp"}
    assert not any("torch/single:" in note or "consistency" in note for note in plan.notes)
    with pytest.raises(BadRequest, match="--consistency asp: strategy torch/ddp has bsp only"):
        planned(runs, {"engine": "torch", "consistency": "asp"})


def test_single_alone_is_one_job(runs: Path) -> None:
    plan = planned(runs, {"engine": "torch", "strategy": "single"})
    assert (len(plan.entries), plan.race.until_sure) == (1, False)


def test_what_is_not_installed_is_left_out_with_a_note(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "missing", lambda engine, strategy: (
        ["install it"] if engine.name != "torch" else []))
    plan = planned(runs, {})
    assert {found[0] for found in shown(plan)} == {"torch"}
    assert any("tensorflow/mirrored" in note and note.endswith(": install it") for note in plan.notes)


def test_a_number_of_workers_that_cannot_run_is_left_out_with_a_note(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_several(job: Any) -> None:
        if job.workers > 1:
            raise BadRequest("too little memory")

    monkeypatch.setattr(preflight, "check_job", refuse_several)
    plan = planned(runs, {"engine": "torch", "strategy": "ddp"})
    assert shown(plan) == {("torch", "ddp", 1, 0), ("torch", "single", 1, 0)}
    assert plan.notes[0] == "left out: torch/ddp with 4 workers: too little memory"


def test_a_model_of_ones_own_races_with_one_engine(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_net.py").write_text("def build(input_shape, classes): ...\n")
    monkeypatch.chdir(tmp_path)
    assert {found[0] for found in shown(planned(runs, {"model": "my_net:build"}))} == {"torch"}


def test_what_nothing_can_train_is_refused_once(runs: Path) -> None:
    with pytest.raises(BadRequest, match=r"^no data set 'nonsense'"):
        planned(runs, {"dataset": "nonsense"})


def test_a_name_alone_resumes_the_race_of_that_name(runs: Path) -> None:
    asked = merge(None, {"engine": "torch"}, {"strategy": ["ddp"], "workers": [1, 2]}, {"until_sure": True})
    first = racing.planned(asked, "mine", runs)
    first.folder.begin(first.race)
    again = planned(runs, {}, "mine")
    assert (again.race, [one.name for one in again.entries]) == (first.race, [one.name for one in first.entries])
    longer = planned(runs, {}, "mine", budget="40m", max_repeat=50)
    assert (longer.race.budget, longer.race.max_repeat, longer.race.until_sure) == (2400.0, 50, True)
    assert longer.race.vary == first.race.vary


def test_the_same_command_resumes_even_if_more_is_installed_by_then(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(environments, "missing", lambda engine, strategy: (
            ["install it"] if engine.name != "torch" else []))
        first = planned(runs, {"model": "linear"})
        first.folder.begin(first.race)
    again = planned(runs, {"model": "linear"})
    assert again.folder.path == first.folder.path
    assert shown(again) == shown(first)
