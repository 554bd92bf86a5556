"""Fixtures of the tests on a real Slurm with two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import slurm as server

MARKS = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(server.missing()), reason=f"a Slurm of our own needs {', '.join(server.missing())}"),
]


@pytest.fixture(scope="module")
def started() -> Iterator[server.Slurm]:
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{before}:/usr/sbin:/sbin"
    running = server.Slurm(nodes=2)
    yield running
    running.close()
    os.environ["PATH"] = before


@pytest.fixture
def slurm(started: server.Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[server.Slurm]:
    """Nothing is left of a job: not in the queue, not in the shared folder, and no agent on a node."""
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    yield started
    assert started.jobs() == []
    mail = tmp_path / ".velodrome-slurm"
    assert not mail.exists()
    deadline = time.monotonic() + 20
    while subprocess.run(["pgrep", "-f", str(mail)], capture_output=True).returncode == 0:
        assert time.monotonic() < deadline, "an agent is left on a node"
        time.sleep(0.2)


@pytest.fixture
def on(tmp_path: Path) -> str:
    return f"slurm:time=20,nodes=2,shared_dir={tmp_path}"
