"""Who is to blame: decided from what each process said and how it ended, without any process."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from velodrome.cluster.plan import Process
from velodrome.offers.world import Member
from velodrome.run.watched import Watched, blame, late, stalled

pytestmark = pytest.mark.unit


class Ended:
    """What the launcher knows of a process."""

    def __init__(self, rank: int, role: str = "worker", code: int | None = None) -> None:
        self.process = Process(Member(role, rank, f"10.0.0.{rank}", 0), 0, 0, {})
        self.code = code

    def exit_code(self) -> int | None:
        return self.code


def watched(rank: int, **fields: Any) -> Watched:
    role = fields.pop("role", "worker")
    return Watched(Ended(rank, role), **{"last_advance": 0.0, **fields})  # type: ignore[arg-type]


def error(cause: str, message: str = "why", traceback: str | None = None) -> dict[str, Any]:
    return {"kind": "error", "cause": cause, "message": message, "traceback": traceback}


def training(rank: int, **fields: Any) -> Watched:
    """Connected, in its first epoch, with a heartbeat a second ago."""
    usual = {"connected": True, "phase": "train", "place": (1, 4), "last_heartbeat": 99.0, "last_event": {"kind": "x"}}
    return watched(rank, **{**usual, **fields})


NOW = 100.0


@pytest.mark.parametrize(
    ("first", "second", "culprit"),
    [
        pytest.param({"error": error("peer"), "error_time": 1.0}, {"exit_code": -9, "exit_time": 1.2}, 1,
                     id="a killed one"),
        pytest.param({"error": error("engine"), "error_time": 1.0}, {"exit_code": 3, "exit_time": 1.2}, 1,
                     id="one that left without a word"),
        pytest.param({"error": error("engine"), "error_time": 1.0}, {"error": error("user"), "error_time": 1.2}, 1,
                     id="the user's code"),
        pytest.param({"error": error("peer"), "error_time": 1.0}, {"error": error("engine"), "error_time": 1.2}, 1,
                     id="an engine's error, not who lost a peer"),
        pytest.param({"exit_code": -signal.SIGABRT, "exit_time": 1.0}, {"exit_code": -9, "exit_time": 1.2}, 1,
                     id="a killed one, not a framework that aborts for it"),
        pytest.param({"error": error("user"), "error_time": 1.0}, {"error": error("user"), "error_time": 1.2}, 0,
                     id="the first of equals"),
        pytest.param({"exit_code": 0, "exit_time": 1.0, "phase": "after connect"},
                     {"exit_code": -9, "exit_time": 1.2}, 1, id="not a server that left because the chief did"),
        pytest.param({"exit_code": 0, "exit_time": 0.1, "finished": True}, {"exit_code": 0, "exit_time": 1.0}, 1,
                     id="one that left early with code 0"),
    ],
)
def test_the_cause_is_blamed_and_not_its_consequence(
    first: dict[str, Any], second: dict[str, Any], culprit: int
) -> None:
    failure = blame([watched(0, **first), watched(1, **second)])
    assert failure is not None
    assert (failure.rank, failure.host) == (culprit, f"10.0.0.{culprit}")
    assert failure.message.startswith(f"worker {culprit} on 10.0.0.{culprit}")


def test_nobody_is_blamed_for_a_good_end() -> None:
    assert blame([watched(0, exit_code=0, finished=True), watched(1)]) is None


def test_a_lost_peer_waits_longer_for_its_cause_than_a_kill_does() -> None:
    peer = watched(0, error=error("peer"), error_time=10.0)
    killed = watched(1, exit_code=-9, exit_time=10.0)
    assert blame([peer], now=12.0) is None
    assert blame([peer], now=16.0) is not None
    found = blame([peer, killed], now=10.5)
    assert found is not None
    assert found.rank == 1


def test_the_users_traceback_goes_with_the_blame() -> None:
    failure = blame([watched(1, error=error("user", "ValueError: no", "Traceback: line 3"), error_time=1.0)])
    assert failure is not None
    assert failure.as_json() == {
        "message": "worker 1 on 10.0.0.1: ValueError: no", "role": "worker", "rank": 1, "host": "10.0.0.1",
        "cause": "user", "traceback": "Traceback: line 3",
    }


@pytest.mark.parametrize(("code", "words"), [
    (-9, "SIGKILL"), (-11, "SIGSEGV"), (-60, "signal 60"), (3, "exited with code 3"), (0, "exited with code 0"),
])
def test_an_end_is_said_in_words(code: int, words: str) -> None:
    failure = blame([watched(0, exit_code=code)])
    assert failure is not None
    assert words in failure.message


def ranks(found: list[Watched]) -> list[tuple[str, int]]:
    return [(w.process.role, w.process.rank) for w in found]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param([training(0, last_advance=96.0), training(1)], [], id="somebody advances"),
        pytest.param([training(0, waiting=True), training(1)], [("worker", 1)], id="one does not wait"),
        pytest.param([training(0), training(1, last_heartbeat=90.0, waiting=True)], [("worker", 1)],
                     id="a heartbeat stopped"),
        pytest.param([training(0, last_advance=99.9), training(1, last_heartbeat=90.0)], [("worker", 1)],
                     id="a heartbeat stopped while another advances"),
        pytest.param([training(0, steps=7), training(1, steps=5), training(2, steps=7)], [("worker", 1)],
                     id="nobody waits and one is behind"),
        pytest.param([training(0, waiting=True, steps=4), training(1, waiting=True, steps=3)], [("worker", 1)],
                     id="all wait and one is behind"),
        pytest.param([training(0), training(1, phase="build", place=(0, 3))], [("worker", 1)],
                     id="one is still building"),
        pytest.param([training(0, phase="save", place=(1, 6)), training(1, place=(2, 4), waiting=True)],
                     [("worker", 0)], id="one is still saving the epoch before"),
        pytest.param([training(0, role="server", phase="after connect"), training(0, role="chief", waiting=True)],
                     [("chief", 0)], id="a server that only serves is not stalled"),
        pytest.param([training(0), training(1)], [("worker", 0), ("worker", 1)], id="they cannot be told apart"),
        pytest.param([training(0, connected=False), training(1)], [], id="not all have connected yet"),
        pytest.param([training(0, exit_code=0)], [], id="all have left"),
    ],
)
def test_the_stalled_one_is_who_holds_the_others_up(
    processes: list[Watched], expected: list[tuple[str, int]]
) -> None:
    assert ranks(stalled(processes, 5.0, NOW)) == expected


def starting(rank: int, **fields: Any) -> Watched:
    return watched(rank, **{"phase": "connect", "last_heartbeat": 99.0, "last_event": {"kind": "phase"}, **fields})


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param([starting(0), starting(1, last_event={}, last_heartbeat=None)], [("worker", 1)],
                     id="never said anything"),
        pytest.param([starting(0), starting(1, last_heartbeat=50.0)], [("worker", 1)], id="a heartbeat stopped"),
        pytest.param([starting(0), starting(1, phase="import")], [("worker", 1)], id="has not come to connecting"),
        pytest.param([starting(0), training(1, last_heartbeat=50.0)], [("worker", 1)],
                     id="connected, and its heartbeat stopped"),
        pytest.param([starting(0), starting(1)], [("worker", 0), ("worker", 1)], id="all are waiting"),
        pytest.param([starting(0), starting(1, last_advance=95.0)], [], id="somebody still comes further"),
        pytest.param([training(0), training(1)], [], id="all have connected"),
    ],
)
def test_the_late_one_is_who_keeps_the_others_from_connecting(
    processes: list[Watched], expected: list[tuple[str, int]]
) -> None:
    assert ranks(late(processes, 20.0, NOW)) == expected


def test_events_tell_where_a_process_is() -> None:
    one = watched(0)
    one.take({"kind": "phase", "phase": "connect", "state": "begin", "time": 1.0})
    assert (one.phase, one.connected) == ("connect", False)
    one.take({"kind": "phase", "phase": "connect", "state": "end", "time": 2.0})
    assert one.connected
    one.take({"kind": "phase", "phase": "train", "state": "begin", "epoch": 2, "time": 3.0})
    one.take({"kind": "resources", "waiting": True, "steps": 12, "time": 4.0})
    assert (one.phase, one.steps, one.waiting, one.place) == ("train", 12, True, (2, 4))
    assert one.last_event["kind"] == "phase", "a heartbeat is no event of note"
    one.take({"kind": "phase", "phase": "evaluate", "part": "test", "state": "end", "time": 5.0})
    assert one.finished
    assert "'phase evaluate end'" in one.last_said()


def test_who_never_spoke_is_said_to_have_been_silent() -> None:
    assert watched(0).last_said() == "it never said anything"


def test_an_end_is_noticed_once() -> None:
    one = Watched(Ended(0, code=4))  # type: ignore[arg-type]
    assert one.has_ended()
    assert not one.has_ended()
    assert (one.exit_code, one.alive, one.failed) == (4, False, True)


def test_a_long_evaluation_that_goes_on_is_no_stall() -> None:
    one = training(0)
    one.take({"kind": "resources", "time": 0.0, "steps": 5, "seen": 1})
    one.last_advance = 0.0
    assert stalled([one], 20.0, NOW) == [one]
    one.take({"kind": "resources", "time": 0.0, "steps": 5, "seen": 2})
    assert stalled([one], 20.0, one.last_advance + 1) == []
