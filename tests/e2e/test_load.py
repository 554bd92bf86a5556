"""Beside other programs: threads that wait for one another sleep instead of spinning, however a process was started,
and a run that other programs disturbed is reported as such."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scene import Scene

from velodrome.machine import cores

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

#: Writes down the CPU time that a process uses while it sleeps after two threads computed together, and ends. It
#: measures until that is next to nothing, or for as many seconds as it may.
NET = """
import os, statistics, time
import torch

def spinning():
    used = []
    for _ in range(10):
        torch.ones(4_000_000).sum()
        before = time.process_time()
        time.sleep(0.02)
        used.append(time.process_time() - before)
    return statistics.median(used)

def build(input_shape, classes, **arguments):
    deadline = time.monotonic() + float(os.environ["AT_MOST"])
    while (seconds := spinning()) > 0.001 and time.monotonic() < deadline:
        pass
    with open(os.environ["MEASURED"], "a") as file:
        file.write(f"{torch.get_num_threads()} {seconds}\\n")
    raise ValueError("measured")
"""
#: Keeps a core busy as long as its parent lives.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"


@pytest.fixture
def other_program() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as other:
        yield psutil.Process(other.pid)
        other.kill()


@pytest.mark.skipif(cores() != 2, reason="a busy core is shared only where there is no other")
@pytest.mark.parametrize("starts", [
    pytest.param(("cold", "warm", "stock"), id="by-the-controller"),
    pytest.param(("debug", "manual", "as the user chose"), id="in-other-ways", marks=pytest.mark.slow),
])
def test_beside_another_program_threads_that_wait_sleep_however_they_were_started(
    velodrome, scene: Scene, tmp_path: Path, other_program: psutil.Process, starts: tuple[str, ...]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    job = ["--engine", "torch", "--strategy", "single", "--model", "net:build", "--threads", "2", "--runs", scene.runs]
    line = velodrome("plan", *job, "--hosts", "127.0.0.1", "--python", sys.executable, "--name", "manual", "--json")
    ours = [sys.executable, "-m", "velodrome"]
    commands: dict[str, list[object]] = {
        "cold": [*ours, "train", *job, "--name", "cold"],
        "warm": [*ours, "race", *job, "--vary", "batch_size=32", "--name", "warm"],
        "debug": [*ours, "train", *job, "--name", "debug", "--on", "debug"],
        "manual": ["bash", "-c", line.json()["processes"][0]["command"]],
        "as the user chose": [*ours, "train", *job, "--name", "chosen"],
        "stock": [*ours, "train", *job, "--name", "stock", "--implementation", "stock"],
    }
    for name in starts:
        spins = name in ("as the user chose", "stock")
        chosen = {"OMP_WAIT_POLICY": "active"} if name == "as the user chose" else {}
        process = subprocess.Popen(
            list(map(str, commands[name])), cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **chosen, "MEASURED": str(tmp_path / name), "PYTHONPATH": str(tmp_path),
                 "AT_MOST": "3" if spins else "60"},
        )
        scene.started.append(process)
    said = {name: process.communicate(timeout=280)[0]
            for name, process in zip(starts, scene.started, strict=True)}
    for name, text in said.items():
        assert (tmp_path / name).is_file(), text
        threads, seconds = (tmp_path / name).read_text().splitlines()[0].split()
        assert threads == "2"
        assert (float(seconds) > 0.001) is (name in ("as the user chose", "stock")), f"{name}: {seconds}"


def test_a_run_beside_another_program_is_reported_as_unreliable(scene: Scene, other_program: psutil.Process) -> None:
    process = scene.start(*scene.words("torch", "single", "--epochs", 20, "--threads", 1))
    text, _ = process.communicate(timeout=280)
    used, seconds = other_program.cpu_times(), time.time() - other_program.create_time()
    assert process.returncode == 0, text
    (host,) = scene.result()["hosts"]
    assert host["cpu"]["foreign"] > 0.5 * (used.user + used.system) / seconds
    assert "repeat the run on an idle machine" in " ".join(text.replace("│", " ").split())
