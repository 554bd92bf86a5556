"""Faults are read as they are written, and refused in one sentence where they make no sense."""

from __future__ import annotations

import pytest

from velodrome.clusters.local.launcher import LocalLauncher
from velodrome.errors import BadRequest
from velodrome.job.job import Job, make_job
from velodrome.job.resolve import resolve
from velodrome.job.values import Fault, parse_fault

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "action", "target", "start", "end", "factor"),
    [
        ("partition node3 20s..30s", "partition", "node3", 20, 30, None),
        ("partition node3 from 20s", "partition", "node3", 20, None, None),
        ("slow node2 4x from 10s", "slow", "node2", 10, None, 4),
        ("slow worker0 1.5x 1m..1m30s", "slow", "worker0", 60, 90, 1.5),
        ("kill worker1 at 15s", "kill", "worker1", 15, None, None),
        ("kill chief at 0s", "kill", "chief", 0, None, None),
        ("pause  server-0   0.5s..2", "pause", "server-0", 0.5, 2, None),
    ],
)
def test_a_fault_is_read(
    text: str, action: str, target: str, start: float, end: float | None, factor: float | None
) -> None:
    found = parse_fault(text)
    assert (found.action, found.target, found.start, found.end, found.factor) == (action, target, start, end, factor)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "'' is not a fault: write one such as 'partition node3 20s..30s'"),
        ("explode node1 at 3s", "'explode node1 at 3s' is not a fault"),
        ("kill worker1", "is not a fault"),
        ("kill ../x at 3s", "is not a fault"),
        ("kill worker1 at soon", "write when as 'at 15s', 'from 15s' or '15s..30s'"),
        ("kill worker1 3s..4s", "a kill happens at one moment"),
        ("kill worker1 from 4s", "a kill happens at one moment"),
        ("partition node1 at 4s", "as in 'partition node1 20s..30s'"),
        ("partition node1 9s..4s", "write when as"),
        ("partition node1 4x 1s..2s", "write how many times slower"),
        ("slow node1 from 3s", "write how many times slower"),
        ("slow node1 0.5x from 3s", "write how many times slower"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, part: str) -> None:
    with pytest.raises(BadRequest) as refused:
        make_job({"faults": [text]})
    assert part in str(refused.value)
    assert str(refused.value).startswith("--fault")
    assert "--faults" not in str(refused.value)


MEMBERS = [("server", 0, "node1"), ("worker", 0, "node2"), ("worker", 1, "node3"), ("chief", 0, "node3")]


@pytest.mark.parametrize(
    ("target", "expected"),
    [("node3", [("worker", 1), ("chief", 0)]), ("worker1", [("worker", 1)]), ("worker-1", [("worker", 1)]),
     ("chief", [("chief", 0)]), ("worker", [("worker", 0)]), ("worker7", [])],
)
def test_a_target_is_a_process_or_all_processes_of_a_host(target: str, expected: list[tuple[str, int]]) -> None:
    assert Fault("", "kill", target, 1.0).processes(MEMBERS) == expected


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("partition worker1 from 3s", "--on local cannot partition; it can kill and pause, and --on emulated has all"),
        ("kill worker7 at 3s", "there is no 'worker7'; choose from worker0, worker1"),
        ("kill node1 at 3s", "there is no 'node1'"),
    ],
)
def test_what_a_launcher_cannot_break_is_refused(fault: str, part: str) -> None:
    job = resolve(Job(engine="torch", strategy="ddp", workers=2, faults=[fault]))
    with pytest.raises(BadRequest) as refused:
        LocalLauncher().check_faults(job)
    assert part in str(refused.value)
    LocalLauncher().check_faults(job.model_copy(update={"faults": ["kill worker1 at 3s"]}))
