"""Every row of the matrix of engines and strategies trains, and ends with one sentence when a process of it is killed
or suspended. Rows come from the registry; those whose packages are not installed are skipped, with the reason.

`VELODROME_RECORD=1` writes how the runs ended into the documentation (docs/engine_matrix.py).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from scene import LONG, Scene

from velodrome.clusters import environments
from velodrome.events.result import RunResult

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests" / "servers")]
import engine_environments  # noqa: E402
from engine_matrix import Row, record_end, rows  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
EPOCHS, BATCH, EXAMPLES, TESTED = 15, 32, 1294, 359
#: Seconds without progress after which a run is stopped, and what a busy machine may take in addition.
STALL, SLACK = 10.0, 45.0
SIGNALS = {"kill": signal.SIGKILL, "suspend": signal.SIGSTOP}


@pytest.fixture(params=[
    pytest.param(row, id=row.name, marks=pytest.mark.xdist_group(row.engine.key)) for row in rows()
])
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Row:
    monkeypatch.setenv(environments.FOLDER, str(engine_environments.HOME))
    found: Row = request.param
    if reason := engine_environments.unavailable(found.engine, found.strategy):
        pytest.skip(reason)
    return found


@pytest.mark.usefixtures("no_strays")
def test_it_learns_the_digits(velodrome: Any, runs: Path, row: Row) -> None:
    done = velodrome("train", *row.words, "--dataset", "digits", "--threads", 1, "--epochs", EPOCHS, "--batch-size",
                     BATCH, "--seed", 1, "--name", "a", "--runs", runs, "--json")
    assert done.code == 0, done.text
    result = done.json()
    RunResult.model_validate(result)
    assert (result["status"], result["engine"], result["strategy"]) == ("finished", row.engine.name, row.strategy.name)
    assert result["consistency"] == row.strategy.consistency
    if row.engine.framework is not None:
        assert f"framework: {row.engine.framework}\n" in (runs / "a" / "job.yaml").read_text()
    assert result["test"]["accuracy"] >= 0.93
    assert result["test"]["total"] == TESTED
    assert sorted((node["role"], node["rank"]) for node in result["nodes"]) == sorted(row.processes)
    if row.strategy.synchronous:
        assert result["steps"] == EPOCHS * -(-EXAMPLES // BATCH)
    assert velodrome("runs", "check", "a", "--runs", runs).code == 0


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_worker_that_is_killed_or_suspended_ends_the_run_by_name(
    velodrome: Any, scene: Scene, row: Row, fault: Literal["kill", "suspend"]
) -> None:
    rank = max(rank for role, rank in row.processes if role == "worker")
    hurt_at: list[float] = []

    def hurt() -> None:
        os.kill(scene.pid("worker", rank), SIGNALS[fault])
        hurt_at.append(time.monotonic())

    scene.when_training(hurt)
    done = velodrome("train", *row.words, "--dataset", "digits", *LONG, "--stall-timeout", STALL, "--name", scene.name,
                     "--runs", scene.runs)
    assert done.code == 1, done.text
    assert hurt_at, done.text
    took, limit = time.monotonic() - hurt_at[0], SLACK + (STALL if fault == "suspend" else 0)
    (sentence,) = (line for line in done.err.splitlines() if line.startswith("velodrome: "))
    assert f"worker {rank}" in sentence
    if fault == "kill":
        assert "SIGKILL" in sentence
    else:
        # TensorFlow's own processes give up on a silent peer after ten seconds, and may be first.
        assert f"made no progress for {STALL:g} s" in sentence or "did not answer" in sentence
        assert sentence.endswith("and its heartbeat stopped")
    assert scene.result()["status"] == "failed"
    assert took < limit
    record_end(row, fault, sentence.removeprefix("velodrome: "), took, limit)
