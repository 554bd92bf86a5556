"""The Python functions return what the commands print with `--json`, on races whose answers are known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import velodrome as package
from synthetic_races import repeated, result, typed, write_race
from velodrome.errors import BadRequest
from velodrome.events import make_event
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.races import runs as race_runs
from velodrome.run.attempt import JobFailed
from velodrome.run.processes import Failure
from velodrome.run.state import RunState
from velodrome.run.store import Store

pytestmark = pytest.mark.unit


@pytest.fixture
def race(runs: Path) -> Path:
    made = [*repeated([100, 102, 98], strategy="single"), *repeated([180, 182, 178], workers=2)]
    return write_race(runs, made).path


def test_every_exported_name_is_there_and_unknown_ones_are_refused() -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert sorted(package._LAZY_EXPORTS) == sorted(package.__all__)
    assert not hasattr(package, "nothing")


def test_recommend_returns_the_verdict_as_text_and_as_data(velodrome, race: Path, runs: Path) -> None:
    found = package.recommend("made", runs=runs)
    assert found == velodrome("recommend", "made", "--runs", runs, "--json").json()
    assert found["verdict"] == "use torch/ddp with 2 workers: distributing pays off."
    assert (found["decision"], found["best"]) == ("use", "torch/ddp with 2 workers")
    assert found["interval"][0] > 1
    cheap = package.recommend("made", runs=runs, objective="cost", price_per_hour=0.4)
    assert cheap["decision"] == "do-not-distribute"
    with pytest.raises(BadRequest, match="give a price above 0"):
        package.recommend("made", runs=runs, price_per_hour=-1)


def test_report_returns_the_paths_that_it_wrote(velodrome, race: Path, runs: Path, tmp_path: Path) -> None:
    found = package.report("made", runs=runs, format="markdown", out=tmp_path / "made.md")
    assert found["files"] == [found["report"]] == [str(tmp_path / "made.md")]
    assert found["recommendations"][0]["best"] == "torch/ddp with 2 workers"
    assert found == velodrome(
        "report", "made", "--runs", runs, "--format", "markdown", "--out", tmp_path / "made.md", "--json"
    ).json()
    # The function is still a function after its package of helpers was imported.
    assert callable(package.report)


def test_runs_are_listed_shown_compared_and_checked(velodrome, race: Path, runs: Path) -> None:
    assert package.runs.list(runs) == velodrome("runs", "list", "--runs", runs, "--json").json()
    inside = package.runs.list(runs, within_races=True, status="finished")
    names = [row["run"] for row in inside if row["kind"] == "run"]
    assert len(names) == 6
    assert package.runs.show("made", runs)["rows"] == [row for row in inside if row["kind"] == "run"]
    one = package.runs.show(names[0], runs)
    stored = json.loads((runs / names[0] / "result.json").read_text())
    assert one == {**stored, "path": str((runs / names[0]).resolve())}, "where it was found"
    pair = package.runs.compare(names[0], names[-1], runs)
    assert pair == velodrome("runs", "compare", names[0], names[-1], "--runs", runs, "--json").json()
    assert [len(side) for side in pair["repetitions"]] == [3, 3]
    assert package.runs.check(runs=runs) == velodrome("runs", "check", "--runs", runs, "--json").json()
    with pytest.raises(BadRequest, match="choose one of"):
        package.runs.list(runs, status="lost")


def test_repetitions_of_one_another_are_compared_as_single_runs(race: Path, runs: Path) -> None:
    rows = [row for row in package.runs.list(runs, within_races=True) if row["kind"] == "run"]
    first, second = (row["run"] for row in rows if row["strategy"] == "ddp" and row["run"][-1] in "45")
    pair = package.runs.compare(first, second, runs)
    assert [len(side) for side in pair["repetitions"]] == [1, 1]
    rates = [package.runs.show(name, runs)["throughput"]["examples_per_second"] for name in (first, second)]
    line = next(line for line in pair["measures"] if line["name"] == "examples_per_second")
    assert line["values"] == rates


def test_runs_are_exported_and_removed(race: Path, runs: Path, tmp_path: Path) -> None:
    table = package.runs.export("made", runs=runs, out=tmp_path / "made.csv")
    assert (table["format"], table["rows"], table["skipped"]) == ("csv", 6, [])
    with pytest.raises(BadRequest, match="exists already"):
        package.runs.export("made", runs=runs, out=tmp_path / "made.csv")
    assert package.runs.remove("made", runs=runs) == {"removed": ["made"]}
    assert package.runs.list(runs) == []


def test_a_dry_run_of_a_race_returns_its_jobs_and_starts_nothing(velodrome, runs: Path) -> None:
    vary = {"strategy": ["single", "ddp"], "batch_size": [32, 64]}
    found = package.race(job={"engine": "torch", "dataset": "digits"}, vary=vary, repeat=2, runs=runs, dry_run=True)
    assert len(found["jobs"]) == 8
    assert found["seconds"] == pytest.approx(sum(job["seconds"] for job in found["jobs"]))
    words = ("--engine", "torch", "--dataset", "digits", "--vary", "strategy=single,ddp", "--repeat", 2)
    printed = velodrome("race", *words, "--vary", "batch_size=32,64", "--runs", runs, "--dry-run", "--json").json()
    assert [job["run"] for job in printed["jobs"]] == [job["run"] for job in found["jobs"]]
    assert not runs.exists()


def test_a_race_object_and_a_file_take_other_fields_on_top(runs: Path, tmp_path: Path) -> None:
    given = package.Race(job={"engine": "torch", "epochs": 2}, vary={"strategy": ["single", "ddp"]})
    found = package.race(given, job=package.Job(epochs=3), runs=runs, dry_run=True)
    assert {job["epochs"] for job in found["jobs"]} == {3}
    (tmp_path / "small.yaml").write_text("job: {engine: torch}\nvary: {strategy: [single]}\n")
    found = package.race(tmp_path / "small.yaml", repeat=3, runs=runs, dry_run=True)
    assert (found["race"], len(found["jobs"])) == ("small", 3)
    with pytest.raises(BadRequest, match="cannot run"):
        package.race(job={"engine": "torch", "strategy": "single", "workers": 2}, runs=runs, dry_run=True)


def test_callbacks_receive_events_and_results_and_a_failure_ends_no_race(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(job: Job, *, store: Store, name: str, listener: Any, **more: Any) -> Result:
        status = "failed" if job.strategy == "ddp" else "finished"
        made = {**result(job.strategy, seed=job.seed, batch_size=job.batch_size, status=status), "run": name}
        run = store.create(name, job)
        listener(RunState(), make_event("warning", role="worker", rank=0, message="the network is slow"))
        try:
            if status == "failed":
                made["error"] = {"message": "the network is down"}
                raise JobFailed(Failure("the network is down"), typed(made))
            return typed(made)
        finally:
            run.finish(typed(made))
            run.close()

    monkeypatch.setattr(race_runs, "execute", execute)
    events: list[tuple[str, dict[str, Any]]] = []
    results: list[dict[str, Any]] = []
    given = package.Race(job={"engine": "torch"}, vary={"strategy": ["single", "ddp"]}, repeat=2)
    asked = {"name": "mixed", "runs": runs, "warm": False}
    found = package.race(
        given, **asked, on_event=lambda run, event: events.append((run, event)), on_job=results.append
    )
    failed = [f"torch-ddp-1w-128b-{number}" for number in (1, 2)]
    assert sorted(found["failed"]) == failed
    assert found["failures"] == dict.fromkeys(found["failed"], "the network is down")
    assert [row["name"] for row in found["rows"]] == ["torch/single with 1 worker"]
    assert found["verdict"].startswith("Verdict: ")
    assert Path(found["figure"]).is_file()
    assert found["path"] == str(runs / "mixed")
    assert sorted(run for run, _ in events) == sorted(made["run"] for made in results)
    assert {event["message"] for _, event in events} == {"the network is slow"}
    assert len(results) == 4
    # The same call again runs what failed and nothing else.
    results.clear()
    again = package.race(given, **asked, on_job=results.append)
    assert sorted(made["run"] for made in results) == failed
    assert again["rows"] == found["rows"]


def test_studies_are_listed_and_shown(velodrome) -> None:
    assert package.study.list() == velodrome("study", "list", "--json").json()
    assert package.study.show("kouskouras-2022", "small") == velodrome(
        "study", "show", "kouskouras-2022", "--scale", "small", "--json"
    ).json()


def test_a_plan_has_a_command_for_every_process(velodrome) -> None:
    job = package.Job(engine="torch", strategy="ddp", workers=2)
    found = package.plan(job, ["10.0.0.1", "10.0.0.2"], name="both")
    assert [process["host"] for process in found["processes"]] == ["10.0.0.1", "10.0.0.2"]
    shown = velodrome(
        "plan", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--hosts", "10.0.0.1,10.0.0.2", "--name",
        "both", "--json",
    ).json()
    secret = re.compile("(?<=SECRET=)[0-9a-f]+")
    assert secret.sub("s", json.dumps(found)) == secret.sub("s", json.dumps(shown)), "each plan has a secret of its own"
    assert len({match for plan in (found, shown) for match in secret.findall(json.dumps(plan))}) == 2
    with pytest.raises(BadRequest, match="no hosts"):
        package.plan(job, [])


def test_data_sets_are_listed_shown_sharded_and_verified(velodrome, tmp_path: Path) -> None:
    assert package.datasets.list() == velodrome("data", "list", "--json").json()
    assert package.datasets.prepare("digits") == velodrome("data", "prepare", "digits", "--json").json()
    sheet = tmp_path / "digits.png"
    shown = package.datasets.show("digits", out=sheet)
    assert shown == velodrome("data", "show", "digits", "--out", sheet, "--json").json()
    assert sheet.is_file()
    place = str(tmp_path / "shards")
    written = package.datasets.shard("digits", place, shards=2, parts=["train", "test"])
    assert written["parts"]["train"] == {"files": 2, "examples": 1294}
    assert package.datasets.verify(f"shards:{place}")["ok"]
    with pytest.raises(BadRequest, match="separated by commas"):
        package.datasets.shard("digits", place, parts=["all"])
