"""The root cause of a failure follows from the events and the ends of all processes; no process is started here."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from velodrome.catalog.world import Member
from velodrome.clusters.launcher import Diagnosis, Exit
from velodrome.clusters.local.launcher import waits_for_others
from velodrome.clusters.plan import Process
from velodrome.events import to_event
from velodrome.events.models import Event
from velodrome.run.processes import ProcessState, awaited, not_connected, root_cause, stalled

pytestmark = pytest.mark.unit


def state(rank: int, **fields: Any) -> ProcessState:
    role = fields.pop("role", "worker")
    if isinstance(fields.get("exit"), int):
        fields["exit"] = Exit.from_returncode(fields["exit"])
    process = Process(Member(role, rank, f"10.0.0.{rank}", 0), 0, 0, {})
    return ProcessState(process, **{"last_progress": 0.0, **fields})


def error(cause: str, message: str = "why", traceback: str | None = None) -> Event:
    return event("error", cause=cause, message=message, traceback=traceback)


def event(kind: str, **fields: Any) -> Event:
    return to_event({"time": 0.0, "role": "worker", "rank": 0, "kind": kind, **fields})


def heartbeat(**fields: Any) -> Event:
    return event("resources", cpu_percent=1.0, memory_bytes=1, network={"in": 0, "out": 0, "loopback": 0}, **fields)


BUILDING = event("phase", phase="build", state="begin")


def training(rank: int, **fields: Any) -> ProcessState:
    """Connected, in its first epoch, with a heartbeat a second ago."""
    usual = {"connected": True, "phase": "train", "position": (1, 4), "last_heartbeat": 99.0, "last_event": BUILDING}
    return state(rank, **{**usual, **fields})


def starting(rank: int, **fields: Any) -> ProcessState:
    return state(rank, **{"phase": "connect", "last_heartbeat": 99.0, "last_event": BUILDING, **fields})


NOW = 100.0
LOST = Exit(None, None, "was lost: its host is down")


@pytest.mark.parametrize(
    ("first", "second", "culprit"),
    [
        pytest.param({"error": error("peer"), "error_time": 1.0}, {"exit": -9, "exit_time": 1.2}, 1,
                     id="a killed one"),
        pytest.param({"error": error("engine"), "error_time": 1.0}, {"exit": 3, "exit_time": 1.2}, 1,
                     id="one that exited without an error event"),
        pytest.param({"error": error("engine"), "error_time": 1.0}, {"error": error("user"), "error_time": 1.2}, 1,
                     id="the user's code"),
        pytest.param({"error": error("peer"), "error_time": 1.0}, {"error": error("engine"), "error_time": 1.2}, 1,
                     id="an engine's error, not who lost a peer"),
        pytest.param({"exit": -signal.SIGABRT, "exit_time": 1.0}, {"exit": -9, "exit_time": 1.2}, 1,
                     id="a killed one, not a framework that aborts for it"),
        pytest.param({"error": error("user"), "error_time": 1.0}, {"error": error("user"), "error_time": 1.2}, 0,
                     id="the first of equals"),
        pytest.param({"exit": 0, "exit_time": 1.0, "phase": "after connect"},
                     {"exit": -9, "exit_time": 1.2}, 1, id="not a server that left because the chief did"),
        pytest.param({"error": error("engine"), "error_time": 1.0},
                     {"error": error("peer"), "error_time": 1.1, "exit": LOST, "exit_time": 1.2}, 1,
                     id="one whose host is lost, although it complains about the others"),
        pytest.param({"exit": 0, "exit_time": 0.1, "finished": True}, {"exit": 0, "exit_time": 1.0}, 1,
                     id="one that left early with code 0"),
    ],
)
def test_the_cause_is_named_and_not_its_consequence(
    first: dict[str, Any], second: dict[str, Any], culprit: int
) -> None:
    failure = root_cause([state(0, **first), state(1, **second)])
    assert failure is not None
    assert (failure.rank, failure.host) == (culprit, f"10.0.0.{culprit}")
    assert failure.message.startswith(f"worker {culprit} on 10.0.0.{culprit}")


def test_a_good_end_has_no_cause_of_failure() -> None:
    assert root_cause([state(0, exit=0, finished=True), state(1)]) is None


def test_a_lost_peer_waits_longer_for_its_cause_than_a_kill_does() -> None:
    peer = state(0, error=error("peer"), error_time=10.0)
    killed = state(1, exit=-9, exit_time=10.0)
    assert root_cause([peer], now=12.0) is None
    assert root_cause([peer], now=16.0) is not None
    found = root_cause([peer, killed], now=10.5)
    assert found is not None
    assert found.rank == 1


def test_the_users_traceback_goes_with_the_root_cause() -> None:
    failure = root_cause([state(1, error=error("user", "ValueError: no", "Traceback: line 3"), error_time=1.0)])
    assert failure is not None
    assert failure.as_json() == {
        "message": "worker 1 on 10.0.0.1: ValueError: no", "role": "worker", "rank": 1, "host": "10.0.0.1",
        "cause": "user", "traceback": "Traceback: line 3",
    }


@pytest.mark.parametrize(("code", "words"), [
    (-9, "SIGKILL"), (-11, "SIGSEGV"), (-60, "signal 60"), (3, "exited with code 3"), (0, "exited with code 0"),
])
def test_an_exit_is_described_in_words(code: int, words: str) -> None:
    failure = root_cause([state(0, exit=code)])
    assert failure is not None
    assert words in failure.message


def ranks(found: list[ProcessState]) -> list[tuple[str, int]]:
    return [(w.process.role, w.process.rank) for w in found]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param([training(0, last_progress=96.0), training(1)], [], id="somebody advances"),
        pytest.param([training(0, waiting=True), training(1)], [("worker", 1)], id="one does not wait"),
        pytest.param([training(0), training(1, last_heartbeat=90.0, waiting=True)], [("worker", 1)],
                     id="a heartbeat stopped"),
        pytest.param([training(0, last_progress=99.9), training(1, last_heartbeat=90.0)], [("worker", 1)],
                     id="a heartbeat stopped while another advances"),
        pytest.param([training(0, steps=7), training(1, steps=5), training(2, steps=7)], [("worker", 1)],
                     id="nobody waits and one is behind"),
        pytest.param([training(0, waiting=True, steps=4), training(1, waiting=True, steps=3)], [("worker", 1)],
                     id="all wait and one is behind"),
        pytest.param([training(0), training(1, phase="build", position=(0, 3))], [("worker", 1)],
                     id="one is still building"),
        pytest.param([training(0, phase="save", position=(1, 6)), training(1, position=(2, 4), waiting=True)],
                     [("worker", 0)], id="one is still saving the epoch before"),
        pytest.param([training(0, role="server", phase="after connect"), training(0, role="chief", waiting=True)],
                     [("chief", 0)], id="a server that only serves is not stalled"),
        pytest.param([training(0), training(1)], [("worker", 0), ("worker", 1)], id="they cannot be told apart"),
        pytest.param([training(0, connected=False), training(1)], [], id="not all have connected yet"),
        pytest.param([starting(0), starting(1, phase="import", last_heartbeat=90.0)], [("worker", 1)],
                     id="a heartbeat stopped during the import"),
        pytest.param([starting(0), starting(1, phase="import", last_heartbeat=None)], [],
                     id="a heartbeat has not begun yet"),
        pytest.param([training(0, exit=0)], [], id="all have left"),
    ],
)
def test_the_stalled_one_is_who_holds_the_others_up(
    processes: list[ProcessState], expected: list[tuple[str, int]]
) -> None:
    assert ranks(stalled(processes, 5.0, NOW)) == expected


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param([starting(0), starting(1, last_event=None, last_heartbeat=None)], [("worker", 1)],
                     id="never reported anything"),
        pytest.param([starting(0), starting(1, last_heartbeat=50.0)], [("worker", 1)], id="a heartbeat stopped"),
        pytest.param([starting(0), starting(1, phase="import")], [("worker", 1)], id="has not come to connecting"),
        pytest.param([starting(0), training(1, last_heartbeat=50.0)], [("worker", 1)],
                     id="connected, and its heartbeat stopped"),
        pytest.param([starting(0), starting(1)], [("worker", 0), ("worker", 1)], id="all are waiting"),
        pytest.param([starting(0), starting(1, last_progress=95.0)], [], id="somebody still comes further"),
        pytest.param([training(0), training(1)], [], id="all have connected"),
    ],
)
def test_the_late_one_is_who_keeps_the_others_from_connecting(
    processes: list[ProcessState], expected: list[tuple[str, int]]
) -> None:
    assert ranks(not_connected(processes, 20.0, NOW)) == expected


def test_events_show_where_a_process_is() -> None:
    one = state(0)
    one.add(event("phase", phase="connect", state="begin"), 1.0)
    assert (one.phase, one.connected) == ("connect", False)
    one.add(event("phase", phase="connect", state="end", seconds=1.0), 2.0)
    assert one.connected
    one.add(event("phase", phase="train", state="begin", epoch=2), 3.0)
    one.add(heartbeat(waiting=True, steps=12), 4.0)
    assert (one.phase, one.steps, one.waiting, one.position) == ("train", 12, True, (2, 4))
    assert one.last_event is not None
    assert one.last_event.kind == "phase", "a heartbeat does not count as an event here"
    one.add(event("phase", phase="evaluate", part="test", state="end", seconds=1.0), 5.0)
    assert one.finished
    assert "'phase evaluate end' 7 s ago" in one.describe_last_event(12.0)


def test_the_age_of_an_event_does_not_depend_on_the_clock_of_its_host() -> None:
    one = state(0)
    one.add(to_event({"time": 9e9, "role": "worker", "rank": 0, "kind": "warning", "message": "odd"}), 10.0)
    assert "'warning' 3 s ago" in one.describe_last_event(13.0)


def test_a_process_without_events_is_described_as_such() -> None:
    assert state(0).describe_last_event(1.0) == "it never reported anything"


def test_a_process_that_ended_early_failed() -> None:
    one = state(0)
    one.record_exit(Exit.from_returncode(4), 3.0)
    assert (one.exit_time, one.alive, one.failed) == (3.0, False, True)


def test_a_long_evaluation_that_makes_progress_is_no_stall() -> None:
    one = training(0)
    one.add(heartbeat(steps=5, seen=1), NOW)
    one.last_progress = 0.0
    assert stalled([one], 20.0, NOW) == [one]
    one.add(heartbeat(steps=5, seen=2), NOW)
    assert stalled([one], 20.0, NOW + 1) == []


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        pytest.param([True, False, True], [1], id="one-elsewhere"),
        pytest.param([False, True, True], [0], id="the-first"),
        pytest.param([True, True, True], [], id="all-wait"),
        pytest.param([False, False, False], [], id="nobody-waits"),
    ],
)
def test_stacks_tell_which_rank_of_a_script_the_others_wait_for(waits: list[bool], named: list[int]) -> None:
    states = [training(rank) for rank in range(3)]
    found = {one.process: Diagnosis(waits=waits[rank]) for rank, one in enumerate(states)}
    assert [one.process.rank for one in awaited(states, found)] == named


@pytest.mark.parametrize(
    ("innermost", "waits"),
    [
        pytest.param("all_reduce (/lib/torch/distributed/distributed_c10d.py:3252)", True, id="collective"),
        pytest.param("_engine_run_backward (/lib/torch/autograd/graph.py:979)", True, id="backward-of-ddp"),
        pytest.param("hold_up (/home/me/train.py:5)", False, id="users-code"),
        pytest.param("wait (/lib/python3.11/multiprocessing/connection.py:3)", False, id="data-loader"),
    ],
)
def test_a_stack_shows_whether_the_main_thread_waits_for_others(innermost: str, waits: bool) -> None:
    beside = 'Thread 8 (idle): "beside"\n    all_reduce (/lib/torch/distributed/distributed_c10d.py:1)'
    stack = f'Process 7: python\n\nThread 7 (idle): "MainThread"\n    {innermost}\n    <module> (/a.py:1)\n{beside}'
    assert waits_for_others(stack) is waits
