"""A race on a task of the user's own is compared, recommended, reported and checked by the metric that it names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from velodrome.api import examples

pytest.importorskip("torch")
pytestmark = pytest.mark.integration

Velodrome = Callable[..., str]
RACE = ("--dataset", "digits", "--model", "own_task:build", "--task", "own_task:Ink", "--engine", "torch",
        "--strategy", "single", "--epochs", "2", "--batch-size", "64", "--no-checkpoints")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a race of a good and a bad learning rate ran."""
    folder = tmp_path_factory.mktemp("own")
    examples.copy(folder)
    run(folder, "race", *RACE, "--vary", "learning_rate=0.01,0.00001", "--repeat", "2", "--name", "ink")
    return folder


def run(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "velodrome", *words], capture_output=True, text=True, timeout=280, cwd=folder,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr if code else done.stdout


def test_the_metric_that_decides_is_in_tables_and_makes_the_verdict(folder: Path) -> None:
    found = json.loads(run(folder, "recommend", "ink", "--objective", "accuracy", "--json"))
    assert "0.01" in found["best"]
    assert found["why"].startswith("test off 0.")
    listed = run(folder, "runs", "list", "--json")
    rows = [row for row in json.loads(listed) if row["kind"] == "race"]
    assert [row["run"] for row in rows] == ["ink"]


def test_a_target_may_name_its_metric_and_no_other(folder: Path) -> None:
    found = json.loads(run(folder, "recommend", "ink", "--target", "off<=0.15", "--json"))
    assert "0.01" in found["best"]
    words = run(folder, "recommend", "ink", "--target", "bleu>=3", code=2)
    assert "no task has a metric 'bleu'" in words
    assert "off" in words


def test_the_report_and_the_check_know_it(folder: Path) -> None:
    run(folder, "report", "ink", "--format", "markdown", "--out", "report.md")
    assert "test off" in (folder / "report.md").read_text()
    assert "0 with problems" in run(folder, "runs", "check", "ink")
    result = json.loads(next((folder / "runs" / "ink").glob("*/result.json")).read_text())
    assert (result["task"], result["metrics"][0]["name"]) == ("own_task:Ink", "off")
    assert result["test"]["off"] == pytest.approx(result["test"]["distance"] / result["test"]["total"])
    path = folder / "runs" / "ink" / result["run"].rpartition("/")[2] / "result.json"
    path.write_text(path.read_text().replace(f'"off": {result["test"]["off"]}', '"off": 0.5'))
    assert "off is 0.5 in result.json" in run(folder, "runs", "check", "ink", code=1)
