"""Jobs on a real Ray of several nodes on this machine: the weights of `local`, dead nodes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
JOB = ["--dataset", "digits", "--epochs", "2", "--seed", "7", "--optimizer", "sgd", "--learning-rate", "0.1",
       "--batch-size", "100", "--batch-scope", "global"]
#: Ray takes its time on a busy machine.
LIMIT = 280
ROWS = [
    ("torch", "ddp", 2, 0), ("torch", "allreduce", 2, 0), ("tensorflow", "multi-worker-mirrored", 2, 0),
    ("tensorflow", "allreduce", 2, 0), ("tensorflow", "parameter-server", 2, 1),
]


def _velodrome(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "velodrome", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT)


def _trained(folder: Path, name: str, *words: object) -> dict[str, Any]:
    done = _velodrome("train", *JOB, "--runs", folder / "runs", "--name", name, "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ray_processes() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"raylet" in words or b"gcs_server" in words:
            found.add(int(process.name))
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head node and two others; its address."""
    program = (
        "import sys, time\n"
        "from ray.cluster_utils import Cluster\n"
        "made = Cluster(initialize_head=True, head_node_args={'num_cpus': 1, 'include_dashboard': False})\n"
        "for _ in range(2):\n"
        "    made.add_node(num_cpus=1)\n"
        "print(made.address, flush=True)\n"
        "sys.stdin.read()\n"
        "made.shutdown()\n"
    )
    variables = {**os.environ, "RAY_raylet_start_wait_time_s": "100", "RAY_USAGE_STATS_ENABLED": "0"}
    running = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env=variables, cwd=tmp_path_factory.mktemp("cluster"))
    assert running.stdout is not None
    try:
        yield running.stdout.readline().strip()
    finally:
        assert running.stdin is not None
        running.stdin.close()
        running.wait(60)


@pytest.mark.parametrize(("engine", "strategy", "workers", "servers"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_every_strategy_runs_on_several_nodes_and_synchronous_ones_end_with_the_weights_of_this_machine(
    cluster: str, tmp_path: Path, engine: str, strategy: str, workers: int, servers: int
) -> None:
    words = ["--engine", engine, "--strategy", strategy, "--workers", workers]
    words += ["--servers", servers] if servers else []
    there = _trained(tmp_path, "there", *words, "--on", f"ray:{cluster}")
    assert there["launcher"] == "ray"
    assert len(there["nodes"]) >= workers
    assert there["test"]["accuracy"] > 0.4
    if strategy == "parameter-server":
        return
    here = _trained(tmp_path, "here", *words)
    if engine == "torch":
        one, other = (load_file(Path(run["path"]) / "model" / "model.safetensors") for run in (here, there))
        assert max(float(np.abs(one[name] - other[name]).max()) for name in one) < 1e-5
    assert there["test"]["correct"] == here["test"]["correct"]


def test_a_cluster_of_its_own_is_gone_after_the_command(tmp_path: Path) -> None:
    before = _ray_processes()
    _trained(tmp_path, "own", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--on", "ray")
    deadline = time.monotonic() + 30
    while _ray_processes() - before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not _ray_processes() - before


def test_resources_that_are_missing_are_listed(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "clusters.yaml").write_text(
        f"farm: {{launcher: ray, address: '{cluster}', cpus: 64, reserve_timeout: 3}}\n"
    )
    done = _velodrome("train", *JOB, "--engine", "torch", "--on", "farm", cwd=tmp_path)
    assert done.returncode == 2
    assert "of 1 CPU free, and 64 are asked for" in done.stderr


def test_each_process_has_an_actor_and_a_killed_command_leaves_none_on_the_nodes(cluster: str, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "velodrome", "train", "--dataset", "digits", "--epochs", "5000", "--engine", "torch",
         "--strategy", "ddp", "--workers", "4", "--runs", str(tmp_path), "--name", "cut", "--on", f"ray:{cluster}"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    events = tmp_path / "cut" / "events.jsonl"
    deadline = time.monotonic() + LIMIT
    while not (events.exists() and '"progress"' in events.read_text()) and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.2)
    assert len(_workers("cut")) == len(_actors()) == 4
    running.send_signal(signal.SIGKILL)
    running.wait()
    deadline = time.monotonic() + 60
    while (_workers("cut") or _actors()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not _workers("cut")
    assert not _actors()


def _actors() -> list[str]:
    """The command lines of Ray's processes that hold an agent."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            found += [line] if line.startswith("ray::AgentActor") else []
    return found


def _workers(run: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"velodrome.training" in words and run.encode() in words:
            found.append(int(process.name))
    return found
