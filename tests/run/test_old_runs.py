"""Run folders that an earlier version wrote still load everywhere.

`old_runs` holds real folders of version 0.1, before events and results had a schema version: without checkpoints,
models and logs, and with most epochs of the interrupted run left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from velodrome.events import read_events
from velodrome.events.result import RunResult
from velodrome.run.check import check_run
from velodrome.run.store import examples_trained

Command = Callable[..., Any]

HERE = Path(__file__).resolve().parent / "old_runs"
FOLDERS = sorted(path.parent for path in HERE.rglob("result.json"))
NAMES = [str(path.relative_to(HERE)) for path in FOLDERS]
STATUSES = {"torch-failed": "failed", "torch-interrupted": "interrupted"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE, tmp_path / "runs"))


def test_every_kind_of_run_is_kept() -> None:
    assert {*NAMES} >= {
        "tensorflow-parameter-server", "tensorflow-mirrored", "torch-allreduce", "torch-language-model", *STATUSES
    }
    assert sum(name.startswith("old-race/") for name in NAMES) == 4


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_an_old_run_is_complete_and_its_result_and_events_are_typed_without_loss(folder: Path) -> None:
    checked = check_run(folder)
    assert (checked.problems, checked.status) == ([], STATUSES.get(folder.name, "finished"))
    stored = json.loads((folder / "result.json").read_text())
    result = RunResult.model_validate(stored)
    assert result.as_json() == stored
    assert list(result.as_json()) == list(stored), "keys keep their order"
    assert result.schema_version == 0
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines() if line]
    assert [event.as_json() for event in read_events(folder / "events.jsonl")] == lines


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_examples_of_an_old_run_are_counted(folder: Path) -> None:
    epochs = RunResult.model_validate_json((folder / "result.json").read_text()).epochs
    per_epoch = 640 if "language" in folder.name else 1294
    assert examples_trained(folder) == (epochs * per_epoch or None)


def test_old_runs_are_listed_and_checked(velodrome: Command, old: Path) -> None:
    rows = {row["run"]: row for row in velodrome("runs", "list", "--all", "--json", "--runs", old).json()}
    assert rows.keys() >= {*NAMES}
    assert all(row["problem"] is None for row in rows.values())
    assert rows["torch-language-model"]["perplexity"] == pytest.approx(40.444, abs=1e-3)
    for name, status in STATUSES.items():
        assert rows[name]["status"] == status
    done = velodrome("runs", "check", "--runs", old)
    assert (done.code, done.out.strip()) == (0, f"{len(FOLDERS)} checked, 0 with problems")


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_is_shown(velodrome: Command, old: Path, name: str) -> None:
    done = velodrome("runs", "show", name, "--runs", old)
    assert done.code == 0, done.text
    assert Path(name).name in done.out


def test_old_runs_are_compared(velodrome: Command, old: Path) -> None:
    done = velodrome("runs", "compare", "torch-allreduce", "tensorflow-mirrored", "--runs", old)
    assert done.code == 0, done.text
    assert "0.7604" in done.out


def test_an_old_race_is_reported_recommended_and_exported(velodrome: Command, old: Path) -> None:
    done = velodrome("report", "old-race", "--runs", old)
    assert done.code == 0, done.text
    assert "ddp" in (old / "old-race" / "report.html").read_text()
    assert velodrome("recommend", "old-race", "--runs", old).code == 0
    done = velodrome("runs", "export", "old-race", "--runs", old, "--format", "csv", "--out", old / "race.csv")
    assert done.code == 0, done.text
    assert (old / "race.csv").read_text().count("\n") == 5


def test_the_batches_of_a_language_model_are_counted_in_words(old: Path) -> None:
    file = old / "torch-language-model" / "result.json"
    result = json.loads(file.read_text())
    result["throughput"]["batches_per_second"] *= 5
    file.write_text(json.dumps(result))
    assert any("batches per second of 20 are not" in problem for problem in check_run(file.parent).problems)


@pytest.mark.integration
def test_an_old_interrupted_run_is_resumed(velodrome: Command, old: Path) -> None:
    folder = old / "torch-interrupted"
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "epochs": 2, "threads": 1}))
    done = velodrome("resume", "torch-interrupted", "--runs", old, "--json")
    assert done.code == 0, done.text
    result = done.json()
    assert (result["status"], result["schema"]) == ("finished", 1)
    assert check_run(folder).problems == []
