"""The column of Ray in the fault matrix: every fault is caused on a real Ray whose nodes have own addresses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scene import LONG
from ssh_scene import LASTING, eventually

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import ray_hosts as server
import wrong_clock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from fault_matrix import record

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600),
    pytest.mark.skipif(bool(server.unavailable()), reason=server.unavailable() or "available"),
]
#: What a busy machine may take in addition to a limit.
SLACK, STALL, SILENCE = 40.0, 20.0, 15.0


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.RayHosts]:
    with server.ray_hosts(tmp_path_factory.mktemp("ray")) as made:
        yield made


@pytest.fixture(autouse=True)
def as_new(hosts: server.RayHosts) -> Iterator[None]:
    hosts.write_clusters(silence=SILENCE)
    yield
    for node in hosts.nodes:
        eventually(lambda node=node: not hosts.workers(node.name), 30, lambda node=node: str(hosts.workers(node.name)))


class Lasting:
    """A job on both hosts that lasts until somebody ends it."""

    def __init__(self, hosts: server.RayHosts, runs: Path, *more: object) -> None:
        self.hosts, self.runs = hosts, runs
        (hosts.home / "lasting.py").write_text(LASTING)
        what = more if "--strategy" in more else ("--script", "lasting.py", "--engine", "torch", "--workers", 2, *more)
        self._sign = ('"progress"', 1) if "--strategy" in more else ('"script"', 2)
        self.process = hosts.velodrome(
            "train", *what, "--on", "farm", "--runs", runs, "--name", "long",
            *(() if "--stall-timeout" in more else ("--stall-timeout", 120)),
        )
        eventually(self._trains, 240)

    def _trains(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        events = self.runs / "long" / "events.jsonl"
        return events.exists() and events.read_text().count(self._sign[0]) >= self._sign[1]

    def find(self, what: str) -> tuple[int, str]:
        """The process with these words, and the address of its host, which is its name in Ray."""
        for node in self.hosts.nodes:
            for pid, line in self.hosts.workers(node.name).items():
                if what in line:
                    return pid, node.address
        raise LookupError(what)

    def ended(self, fault: str, limit: float, *parts: str) -> None:
        broke = time.monotonic()
        _, errors = self.process.communicate(timeout=limit + 120)
        took = time.monotonic() - broke
        assert self.process.returncode == 1, errors
        sentence = str(json.loads((self.runs / "long" / "result.json").read_text())["error"]["message"])
        for part in parts:
            assert part in sentence
        assert took < limit, sentence
        record("ray", fault, sentence, took, limit)


def name_of(hosts: server.RayHosts, address: str) -> str:
    return next(node.name for node in hosts.nodes if node.address == address)


def test_kill_worker(hosts: server.RayHosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    pid, host = job.find("--rank 1 ")
    os.kill(pid, signal.SIGKILL)
    job.ended("kill worker", SLACK, f"worker 1 on {host}", "SIGKILL")


@pytest.mark.parametrize("role", ["server", "chief"])
def test_kill_server_and_chief(hosts: server.RayHosts, tmp_path: Path, role: str) -> None:
    job = Lasting(hosts, tmp_path, "--engine", "tensorflow", "--strategy", "parameter-server", "--workers", 1,
                  "--servers", 1, *LONG)
    pid, host = job.find(f"--role {role} ")
    os.kill(pid, signal.SIGKILL)
    job.ended(f"kill {role}", SLACK, f"{role} 0 on {host}", "SIGKILL")


def test_pause(hosts: server.RayHosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path, "--stall-timeout", STALL)
    pid, host = job.find("--rank 1 ")
    os.kill(pid, signal.SIGSTOP)
    job.ended("pause", STALL + SLACK, f"worker 1 on {host} made no progress for {STALL:g} s")


def test_full_disk(hosts: server.RayHosts, tmp_path: Path) -> None:
    (hosts.home / "fill.py").write_text(
        "import os, time\n"
        "with open(os.environ['VELODROME_FOLDER'] + '/big', 'wb') as stream:\n"
        "    for _ in range(100 if os.environ['RANK'] == '1' else 0):\n"
        "        stream.write(bytes(4 << 20)); stream.flush()\n"
        "time.sleep(1)\n"
    )
    sentence, took = refused(hosts, tmp_path, 1, "--script", "fill.py", "--engine", "torch", "--workers", 2)
    assert f"worker 1 on {hosts.nodes[1].address}" in sentence
    assert "No space left on device" in sentence
    record("ray", "full disk", sentence, took, 120)


def refused(hosts: server.RayHosts, runs: Path, code: int, *words: object) -> tuple[str, float]:
    """The sentence that a job ends with, and how long that took."""
    began = time.monotonic()
    process = hosts.velodrome("train", *words, "--on", "farm", "--runs", runs)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    lines = [line for line in errors.splitlines() if line.startswith("velodrome: ")]
    return lines[0].removeprefix("velodrome: "), time.monotonic() - began


def wrapper(hosts: server.RayHosts, line: str) -> Path:
    """An interpreter that does something before it starts, on the second host only."""
    path = hosts.home / "python"
    path.write_text(f'#!/bin/sh\n[ "$(hostname)" = {hosts.nodes[1].name} ] && {line}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


JOB = ("--engine", "torch", "--strategy", "ddp", "--workers", 2)


def test_other_version(hosts: server.RayHosts, tmp_path: Path) -> None:
    other = hosts.home / "other" / "numpy-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9.9\n")
    hosts.write_clusters(python=str(wrapper(hosts, f"export PYTHONPATH={other.parent}")))
    sentence, took = refused(hosts, tmp_path, 2, *JOB)
    assert f"host '{hosts.nodes[1].address}': it has numpy 9.9.9" in sentence
    record("ray", "other version", sentence, took, 120)


@pytest.mark.skipif(bool(wrong_clock.unavailable()), reason=wrong_clock.unavailable() or "available")
def test_clock(hosts: server.RayHosts, tmp_path: Path) -> None:
    line = f"export LD_PRELOAD={wrong_clock.build(hosts.home)}"
    hosts.write_clusters(runtime_env={"py_executable": str(wrapper(hosts, line))})
    sentence, took = refused(hosts, tmp_path, 2, *JOB)
    assert f"host '{hosts.nodes[1].address}': its clock is 3" in sentence
    record("ray", "clock", sentence, took, 120)


def test_kill_controller(hosts: server.RayHosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    job.process.kill()
    job.process.communicate()
    began = time.monotonic()
    for node in hosts.nodes:
        eventually(lambda node=node: not hosts.workers(node.name), SLACK, lambda node=node: node.name)
    took = time.monotonic() - began
    words = ["train", "--runs", tmp_path, "--name", "next", "--epochs", 1]
    done = subprocess.run([sys.executable, "-m", "velodrome", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sentence = next(line for line in done.stderr.splitlines() if "was interrupted" in line)
    record("ray", "kill controller", f"no process is left, and the next command prints: {sentence}", took, SLACK)


def test_kill_daemon(hosts: server.RayHosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    _, host = job.find("--rank 1 ")
    hosts.kill_daemon(name_of(hosts, host))
    try:
        job.ended("kill daemon", SILENCE + SLACK, f"worker 1 on {host} was lost")
    finally:
        hosts.restart(name_of(hosts, host))


def test_partition(hosts: server.RayHosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    _, host = job.find("--rank 1 ")
    hosts.network.cut(name_of(hosts, host))
    try:
        job.ended("partition", SILENCE + SLACK, f"worker 1 on {host} was lost", "has not answered for")
        eventually(lambda: not hosts.workers(name_of(hosts, host)), 60)
    finally:
        hosts.network.mend(name_of(hosts, host))
        hosts.restart(name_of(hosts, host))
