"""The column of Ray in the fault matrix: every fault is caused on a real Ray whose nodes have own addresses."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_scene import FILL, JOB, ended_as, other_numpy, reported_by_the_next_command, sentence_of
from scene import LONG
from ssh_scene import LASTING, eventually

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import ray_hosts as server
import wrong_clock

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
    none_left(hosts, 30)


def none_left(hosts: server.RayHosts, seconds: float) -> None:
    for node in hosts.nodes:
        eventually(lambda node=node: not hosts.workers(node.name), seconds, lambda node=node: node.name)


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
        ended_as("ray", fault, sentence, took, limit, *parts)


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
    (hosts.home / "fill.py").write_text(FILL)
    sentence, took = refused(hosts, tmp_path, 1, "--script", "fill.py", "--engine", "torch", "--workers", 2)
    ended_as("ray", "full disk", sentence, took, 120, f"worker 1 on {hosts.nodes[1].address}",
             "No space left on device")


def refused(hosts: server.RayHosts, runs: Path, code: int, *words: object) -> tuple[str, float]:
    """The sentence that a job ends with, and how long that took."""
    began = time.monotonic()
    process = hosts.velodrome("train", *words, "--on", "farm", "--runs", runs)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    return sentence_of(errors), time.monotonic() - began


def wrapper(hosts: server.RayHosts, line: str) -> Path:
    """An interpreter that does something before it starts, on the second host only."""
    path = hosts.home / "python"
    path.write_text(f'#!/bin/sh\n[ "$(hostname)" = {hosts.nodes[1].name} ] && {line}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_other_version(hosts: server.RayHosts, tmp_path: Path) -> None:
    hosts.write_clusters(python=str(wrapper(hosts, f"export PYTHONPATH={other_numpy(hosts.home)}")))
    sentence, took = refused(hosts, tmp_path, 2, *JOB)
    ended_as("ray", "other version", sentence, took, 120, f"host '{hosts.nodes[1].address}': it has numpy 9.9.9")


@pytest.mark.skipif(bool(wrong_clock.unavailable()), reason=wrong_clock.unavailable() or "available")
def test_clock(hosts: server.RayHosts, tmp_path: Path) -> None:
    line = f"export LD_PRELOAD={wrong_clock.build(hosts.home)}"
    hosts.write_clusters(runtime_env={"py_executable": str(wrapper(hosts, line))})
    sentence, took = refused(hosts, tmp_path, 2, *JOB)
    ended_as("ray", "clock", sentence, took, 120, f"host '{hosts.nodes[1].address}': its clock is 3")


def test_kill_controller(hosts: server.RayHosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    job.process.kill()
    job.process.communicate()
    began = time.monotonic()
    none_left(hosts, SLACK)
    took = time.monotonic() - began
    ended_as("ray", "kill controller", reported_by_the_next_command(tmp_path), took, SLACK)


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
