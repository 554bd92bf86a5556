"""Races over SSH: jobs at the same time, each on hosts of its own."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_scene import LASTING, eventually, finished, none_left

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import sshd

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400),
    pytest.mark.skipif(bool(sshd.unavailable()), reason=sshd.unavailable() or "available"),
]


@pytest.fixture(autouse=True)
def nothing_left(hosts: sshd.Hosts) -> Iterator[None]:
    yield
    none_left(hosts)


def test_jobs_of_a_race_run_at_the_same_time_each_on_a_host_of_its_own(hosts: sshd.Hosts, tmp_path: Path) -> None:
    (hosts.home / "waits.py").write_text("import time\ntime.sleep(4)\n")
    code, _, errors = finished(hosts.velodrome(
        "race", "--script", "waits.py", "--engine", "torch", "--vary", "script_args=a,b", "--on", "lab", "--runs",
        tmp_path, "--name", "r", "--no-baseline",
    ))
    assert code == 0, errors
    results = [json.loads(path.read_text()) for path in (tmp_path / "r").glob("*/result.json")]
    # Later ones are repeats of runs that other programs disturbed, one at a time.
    first, second = sorted(results, key=lambda result: float(result["started"]))[:2]
    assert {node["host"] for result in (first, second) for node in result["nodes"]} == set(hosts.names)
    assert second["started"] < first["ended"], "the second began when the first was over"


def test_ctrl_c_ends_all_jobs_of_a_race_that_run_at_the_same_time(hosts: sshd.Hosts, tmp_path: Path) -> None:
    (hosts.home / "lasting.py").write_text(LASTING)
    process = hosts.velodrome(
        "race", "--script", "lasting.py", "--engine", "torch", "--vary", "script_args=a,b", "--on", "lab", "--runs",
        tmp_path, "--name", "r", "--no-baseline",
    )
    eventually(lambda: len([*tmp_path.glob("r/*/events.jsonl")]) == 2 and all(
        '"script"' in path.read_text() for path in tmp_path.glob("r/*/events.jsonl")), 90)
    process.send_signal(signal.SIGINT)
    code, _, errors = finished(process)
    assert code == 130, errors
    for path in tmp_path.glob("r/*/result.json"):
        assert json.loads(path.read_text())["status"] == "interrupted"
    assert len([*tmp_path.glob("r/*/result.json")]) == 2
