"""The column of SSH in the fault matrix: every fault is caused on hosts with a real sshd each."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fault_scene import FILL, JOB, ended_as, other_numpy, reported_by_the_next_command, sentence_of
from scene import LONG
from ssh_scene import Lasting, eventually, finished, left_on, none_left, restored

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import sshd
import wrong_clock

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400),
    pytest.mark.skipif(bool(sshd.unavailable()), reason=sshd.unavailable() or "available"),
]
#: What a busy machine may take in addition to a limit.
SLACK = 30.0
STALL = 20.0


@pytest.fixture(autouse=True)
def as_new(hosts: sshd.Hosts) -> Iterator[None]:
    restored(hosts)
    yield
    none_left(hosts)


def ended(fault: str, job: Lasting, broke: float, limit: float, *parts: str) -> None:
    sentence = job.failed(limit + 60)
    ended_as("ssh", fault, sentence, time.monotonic() - broke, limit, *parts)


def test_kill_worker(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job, name = Lasting(hosts, tmp_path), hosts.names[1]
    os.kill(job.pid(name, "--rank 1"), signal.SIGKILL)
    ended("kill worker", job, time.monotonic(), SLACK, f"worker 1 on {name}", "SIGKILL")


@pytest.mark.parametrize("role", ["server", "chief"])
def test_kill_server_and_chief(hosts: sshd.Hosts, tmp_path: Path, role: str) -> None:
    job = Lasting(
        hosts, tmp_path, "--engine", "tensorflow", "--strategy", "parameter-server", "--workers", 1, "--servers", 1,
        *LONG, script=False,
    )
    name = next(name for name in hosts.names if any(f"--role {role} " in line for line in hosts.command_lines(name)))
    os.kill(job.pid(name, f"--role {role} "), signal.SIGKILL)
    ended(f"kill {role}", job, time.monotonic(), SLACK, f"{role} 0 on {name}", "SIGKILL")


def test_kill_daemon(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job, name = Lasting(hosts, tmp_path), hosts.names[1]
    for pid in hosts.processes(name):
        with suppress(OSError):
            if (Path("/proc") / str(pid) / "comm").read_text().strip() == "sshd":
                os.kill(pid, signal.SIGKILL)
    try:
        ended("kill daemon", job, time.monotonic(), SLACK, f"worker 1 on {name} was lost", "closed the connection")
    finally:
        hosts.crash(name)
        hosts.start(name)


def test_pause(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job, name = Lasting(hosts, tmp_path, "--stall-timeout", STALL), hosts.names[1]
    os.kill(job.pid(name, "--rank 1"), signal.SIGSTOP)
    ended("pause", job, time.monotonic(), STALL + SLACK, f"worker 1 on {name} made no progress for {STALL:g} s")


def test_partition(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job, name = Lasting(hosts, tmp_path, silence=10), hosts.names[1]
    hosts.cut(name)
    try:
        ended("partition", job, time.monotonic(), 10 + SLACK, f"worker 1 on {name} was lost", "its network is cut")
        eventually(lambda: not [line for line in left_on(hosts, name) if "velodrome" in line], 30)
    finally:
        hosts.heal(name)
        hosts.crash(name)
        hosts.start(name)


def test_full_disk(hosts: sshd.Hosts, tmp_path: Path) -> None:
    (hosts.home / "fill.py").write_text(FILL)
    began = time.monotonic()
    code, _, errors = finished(hosts.velodrome(
        "train", "--on", "lab", "--script", "fill.py", "--engine", "torch", "--workers", 2, "--runs", tmp_path,
    ))
    assert code == 1
    sentence = sentence_of(errors)
    ended_as("ssh", "full disk", sentence, time.monotonic() - began, 120, f"worker 1 on {hosts.names[1]}",
             "No space left on device")


def refused(hosts: sshd.Hosts, fault: str, runs: Path, *parts: str) -> None:
    """A job that must not start."""
    began = time.monotonic()
    code, _, errors = finished(hosts.velodrome("train", "--on", "lab", *JOB, "--runs", runs))
    took = time.monotonic() - began
    assert code == 2, errors
    assert not [*runs.iterdir()]
    ended_as("ssh", fault, sentence_of(errors), took, 60, *parts)


def wrap_python(hosts: sshd.Hosts, line: str) -> None:
    """An interpreter on each host's own disk; on the second host it does something before it starts."""
    for node in hosts.nodes:
        text = "\n".join(["#!/bin/sh", line if node is hosts.nodes[1] else "", f'exec {sys.executable} "$@"'])
        node.run("sh", "-c", f'cat > {hosts.disk}/python <<"E"\n{text}\nE\nchmod +x {hosts.disk}/python')
    hosts.write_clusters(python=str(hosts.disk / "python"))


def test_other_version(hosts: sshd.Hosts, tmp_path: Path) -> None:
    wrap_python(hosts, f"export PYTHONPATH={other_numpy(hosts.home)}")
    refused(hosts, "other version", tmp_path, f"host '{hosts.names[1]}': it has numpy 9.9.9")


@pytest.mark.skipif(bool(wrong_clock.unavailable()), reason=wrong_clock.unavailable() or "available")
def test_clock(hosts: sshd.Hosts, tmp_path: Path) -> None:
    wrap_python(hosts, f"export LD_PRELOAD={wrong_clock.build(hosts.home)}")
    refused(hosts, "clock", tmp_path, f"host '{hosts.names[1]}': its clock is 36", "ahead of this machine's")


def test_kill_controller(hosts: sshd.Hosts, tmp_path: Path) -> None:
    job = Lasting(hosts, tmp_path)
    job.process.kill()
    job.process.communicate()
    began = time.monotonic()
    none_left(hosts, SLACK)
    took = time.monotonic() - began
    ended_as("ssh", "kill controller", reported_by_the_next_command(tmp_path), took, SLACK)
