"""A new task is one file per side: `third/` adds one, and everything from training to a recommendation takes it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

THIRD = Path(__file__).parent / "third"
Velodrome = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def velodrome(tmp_path: Path) -> Velodrome:
    """The command, in processes that know the third task."""
    path = os.pathsep.join(filter(None, (str(THIRD), os.environ.get("PYTHONPATH"))))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "velodrome", *words], capture_output=True, text=True, timeout=280,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=False,
        )

    return run


def train(velodrome: Velodrome, strategy: str, workers: int, *more: str) -> dict[str, Any]:
    done = velodrome(
        "train", "--model", "brightness-linear", "--engine", "torch", "--strategy", strategy, "--workers",
        str(workers), "--batch-size", "50", "--epochs", "8", "--optimizer", "sgd", "--learning-rate", "0.05",
        "--target", "error<=0.045", "--name", strategy, "--json", *more,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ddp", marks=pytest.mark.slow)])
def test_it_trains_alone_and_distributed_until_its_own_metric_is_reached(velodrome: Velodrome, strategy: str) -> None:
    alone, together = train(velodrome, "single", 1), train(velodrome, strategy, 2)
    assert alone["task"] == "brightness"
    assert alone["reached_target"]
    assert 1 < alone["epochs"] < 8
    errors = [entry["validation_error"] for entry in alone["history"]]
    assert errors[-1] <= 0.045 < min(errors[:-1])
    assert set(alone["test"]) == {"error", "loss", "absolute", "total"}
    assert alone["test"]["error"] == pytest.approx(alone["test"]["absolute"] / alone["test"]["total"])
    assert together["epochs"] == alone["epochs"]
    assert together["test"]["error"] == pytest.approx(alone["test"]["error"], rel=1e-4)
    listed = velodrome("runs", "list")
    assert f"error {alone['test']['error']:.5f}" in listed.stdout
    checked = velodrome("runs", "check", "single", strategy)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_a_person_reads_its_metric_and_the_wrong_ones_are_refused(velodrome: Velodrome) -> None:
    words = ("train", "--model", "brightness-linear", "--epochs", "1", "--batch-size", "50")
    done = velodrome(*words)
    assert "validation error 0." in done.stderr
    assert "test error" in done.stdout + done.stderr
    refused = velodrome(*words, "--target", "accuracy>=0.9")
    assert refused.returncode == 2
    assert "brightness has no metric 'accuracy'; choose error or loss" in refused.stderr
    nobody = velodrome(*words, "--engine", "tensorflow")
    assert nobody.returncode == 2
    assert "--engine tensorflow has no implementation of task 'brightness'" in nobody.stderr
