"""A small race from Python: real processes, the same result as on disk, and the same answers as the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import velodrome as package


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_race_from_python_trains_compares_and_recommends(velodrome, runs: Path, no_strays) -> None:
    job = {"dataset": "digits", "engine": "torch", "epochs": 3, "threads": 1}
    entries = [{"strategy": "single"}, {"strategy": "ddp", "workers": 2}]
    kinds: dict[str, set[str]] = {}
    ended: list[str] = []
    found = package.race(
        job=job, vary={"entry": entries}, name="small", runs=runs,
        on_event=lambda run, event: kinds.setdefault(run, set()).add(event["kind"]),
        on_job=lambda result: ended.append(result["run"]),
    )
    names = {"torch-single-1w-128b-1", "torch-ddp-2w-128b-1"}
    assert set(ended) == names == set(kinds)
    assert all("epoch" in heard for heard in kinds.values())
    assert (found["failed"], found["failures"]) == ([], {})
    rows = {row["strategy"]: row for row in found["rows"]}
    assert rows["ddp"]["speedup"] == pytest.approx(
        rows["ddp"]["examples_per_second"] / rows["single"]["examples_per_second"]
    )
    stored = json.loads((runs / "small" / "torch-ddp-2w-128b-1" / "result.json").read_text())
    assert rows["ddp"]["accuracy"] == stored["test"]["accuracy"] > 0.5
    cpu = stored["hosts"][0]["cpu"]
    assert cpu["own"] > 0
    assert rows["ddp"]["foreign_cores"] == cpu["foreign"]

    assert found["verdict"] == f"Verdict: {package.recommend('small', runs=runs)['verdict']}"
    assert Path(package.report("small", runs=runs)["report"]) == runs / "small" / "report.html"
    assert package.runs.check(runs=runs)["ok"]
    again = velodrome("race", "--dataset", "digits", "--engine", "torch", "--epochs", 3,
                      "--threads", 1, "--vary", "strategy=single", "--name", "small", "--runs", runs)
    assert "holds another race" in again.err
    ended.clear()
    same = package.race(job=job, vary={"entry": entries}, name="small", runs=runs,
                        on_job=lambda result: ended.append(result["run"]))
    assert ended == []
    assert same == found


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_the_engines_are_those_that_the_command_lists(velodrome) -> None:
    assert package.list_engines() == velodrome("engines", "--json").json()
