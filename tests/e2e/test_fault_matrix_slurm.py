"""The column of Slurm in the fault matrix: every fault is caused on the nodes of a real Slurm."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_scene import JOB, ended_as, other_numpy, sentence_of
from scene import LONG, Scene
from slurm_scene import MARKS, server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import wrong_clock

pytestmark = MARKS
#: What a busy machine may take in addition to a limit.
SLACK, STALL = 40.0, 30.0
#: How long Slurm waits for a daemon before it gives its node up, as in the configuration of the tests.
SLURMD = 30.0
TORCH = ("torch", "ddp", *LONG, "--stall-timeout", STALL)
SERVERS = ("tensorflow", "parameter-server", "--servers", 1, *LONG, "--stall-timeout", STALL)


def fails(
    velodrome: Any, scene: Scene, fault: str, words: list[str], break_it: Callable[[], object], limit: float,
    *parts: str,
) -> None:
    broke: list[float] = []

    def act() -> None:
        broke.append(time.time())
        break_it()

    scene.when_training(act)
    done = velodrome(*words)
    assert done.code == 1, done.text
    assert subprocess.run(["pgrep", "-f", str(scene.runs)], capture_output=True).returncode == 1
    ended_as("slurm", fault, sentence_of(done.err), scene.result()["ended"] - broke[0], limit, *parts)


@pytest.mark.parametrize(
    ("fault", "number", "words", "limit"),
    [("kill worker", signal.SIGKILL, "worker 1 on n2 was ended by SIGKILL", SLACK),
     ("pause", signal.SIGSTOP, f"worker 1 on n2 made no progress for {STALL:g} s", STALL + SLACK)],
)
def test_a_worker_that_is_killed_or_suspended(
    velodrome: Any, scene: Scene, slurm: server.Slurm, on: str, fault: str, number: signal.Signals, words: str,
    limit: float,
) -> None:
    job = scene.words(*TORCH, "--on", on)
    fails(velodrome, scene, fault, job, scene.send(number, "worker", 1), limit, words)


@pytest.mark.parametrize("role", ["server", "chief"])
def test_a_server_or_chief_that_is_killed(
    velodrome: Any, scene: Scene, slurm: server.Slurm, on: str, role: str
) -> None:
    job = scene.words(*SERVERS, "--on", on, workers=1)
    kill = scene.send(signal.SIGKILL, role, 0)
    fails(velodrome, scene, f"kill {role}", job, kill, SLACK, f"{role} 0 on n1", "SIGKILL")


def test_a_daemon_that_is_killed(velodrome: Any, scene: Scene, slurm: server.Slurm, on: str) -> None:
    try:
        fails(velodrome, scene, "kill daemon", scene.words(*TORCH, "--on", on), lambda: slurm.kill_daemon("n2"),
              SLURMD + 60 + SLACK, "worker 1 on n2", "node 'n2' failed (NODE_FAIL)")
    finally:
        slurm.start_daemon("n2")


def test_a_node_that_is_cut_off(velodrome: Any, scene: Scene, slurm: server.Slurm, on: str) -> None:
    try:
        fails(velodrome, scene, "partition", scene.words(*TORCH, "--on", on), lambda: slurm.cut("n2"),
              SLURMD + 60 + SLACK, "worker 1 on n2", "n2 is cut off from the others")
    finally:
        slurm.heal("n2")


@pytest.fixture
def small_disk(scene: Scene) -> Iterator[None]:
    scene.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "velodrome-test", scene.runs], check=True)
    yield
    subprocess.run(["umount", scene.runs], check=True)


def test_a_full_disk(velodrome: Any, slurm: server.Slurm, scene: Scene, on: str, small_disk: None) -> None:
    """The disk that nodes and command share, below `--runs`."""
    began = time.monotonic()
    done = velodrome(*scene.words("torch", "ddp", "--model", "dense-300-100", "--epochs", 50, "--on", on))
    assert done.code == 1, done.text
    took = time.monotonic() - began
    ended_as("slurm", "full disk", sentence_of(done.err), took, 120, "worker 0 on n1", "No space left on device")


def wrapper(folder: Path, line: str) -> Path:
    """An interpreter that does something before it starts, on the second node only."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n[ "$(hostname)" = n2 ] && {line}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def refused(
    velodrome: Any, fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, *parts: str
) -> None:
    about = {"launcher": "slurm", "nodes": 2, "time": "20", "shared_dir": str(folder),
             "python": str(wrapper(folder, line))}
    (folder / "clusters.yaml").write_text(yaml.safe_dump({"lab": about}))
    monkeypatch.setenv("VELODROME_CLUSTERS", str(folder / "clusters.yaml"))
    began = time.monotonic()
    done = velodrome("train", *JOB, "--on", "lab", "--runs", folder / "runs")
    assert done.code in (1, 2), done.text
    ended_as("slurm", fault, sentence_of(done.err), time.monotonic() - began, 120, *parts)


def test_another_version_on_one_node(
    velodrome: Any, slurm: server.Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(velodrome, "other version", tmp_path, monkeypatch, f"export PYTHONPATH={other_numpy(tmp_path)}",
            "host 'n2': it has numpy 9.9.9")


@pytest.mark.skipif(bool(wrong_clock.unavailable()), reason=wrong_clock.unavailable() or "available")
def test_a_clock_that_is_an_hour_ahead(
    velodrome: Any, slurm: server.Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(velodrome, "clock", tmp_path, monkeypatch,
            f"export LD_PRELOAD={wrong_clock.build(tmp_path)}",
            "host 'n2': its clock is 3", "ahead of this machine's")
