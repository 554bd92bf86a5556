"""Which process caused a failure or holds the others up: pure functions of the states of all processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from velodrome.clusters.launcher import Diagnosis
from velodrome.clusters.plan import Process
from velodrome.run.outcome import Failure
from velodrome.run.process_state import SILENT_SECONDS, ProcessState

#: What a framework does to itself when a peer goes away; any other signal came from outside or is the cause.
_OWN_ABORT = "SIGABRT"
#: How long the others may still report after the first failure, by how certain its cause is: certain (a process was
#: killed, the user's code raised), possible (an engine's error), certainly not (a peer was lost: another one failed).
_GRACE_SECONDS = (0.3, 1.5, 5.0)
_DOUBT_OF_CAUSE = {"request": 0, "user": 0, "port": 0, "peer": 2}


@dataclass(frozen=True, order=True)
class _Suspect:
    """A process that failed: how doubtful it is that it is the cause (an index of the grace), and since when."""

    doubt: int
    time: float
    failure: Failure = field(compare=False)


def _suspect(state: ProcessState) -> _Suspect:
    process, error = state.process, state.error
    # A process on a host that is lost may report first that it cannot reach the others.
    if error is not None and not (error.cause == "peer" and state.exit is not None and state.exit.is_lost):
        failure = Failure(f"{state}: {error.message}", process.role, process.rank, process.host, cause=error.cause,
                          traceback=error.traceback)
        return _Suspect(_DOUBT_OF_CAUSE.get(error.cause, 1), state.error_time, failure)
    assert state.exit is not None
    failure = Failure(f"{state} {state.exit.cause}", process.role, process.rank, process.host, cause="exit")
    # A process that only serves leaves when there is nobody left to serve.
    left = state.exit.is_success and state.only_serves
    return _Suspect(2 if left else 1 if state.exit.signal == _OWN_ABORT else 0, state.exit_time, failure)


def root_cause(states: Iterable[ProcessState], now: float = math.inf) -> Failure | None:
    """The first failure among those that are causes and not consequences; None while a surer one may yet show."""
    suspects = sorted(_suspect(state) for state in states if state.failed)
    if not suspects or now - min(suspect.time for suspect in suspects) < _GRACE_SECONDS[suspects[0].doubt]:
        return None
    return suspects[0].failure


def not_connected(states: Iterable[ProcessState], limit: float, now: float) -> list[ProcessState]:
    """The processes that keep the others from connecting, once none has made progress for that long."""
    alive = [state for state in states if state.alive]
    missing = [state for state in alive if not state.connected]
    if not missing or any(now - state.last_progress <= limit for state in alive):
        return []
    silent = [s for s in alive if s.last_event is None or s.is_silent(min(limit, SILENT_SECONDS), now)]
    # A process in `connect` waits for those that are not.
    return silent or [state for state in missing if state.phase != "connect"] or missing


def stalled(states: Iterable[ProcessState], limit: float, now: float) -> list[ProcessState]:
    """The processes that hold up the others: their heartbeat stopped, or they do not wait for anybody."""
    alive = [state for state in states if state.alive]
    # At the start too: what has had a heartbeat and lost it will not connect.
    if silent := [state for state in alive if state.is_silent(limit, now)]:
        return silent
    if not alive or not all(state.connected for state in alive):
        return []
    if any(now - state.last_progress <= limit for state in alive):
        return []
    training = [state for state in alive if not state.only_serves] or alive
    behind = [state for state in training if not state.waiting] or training
    least = min((state.steps, *state.position) for state in behind)
    return [state for state in behind if (state.steps, *state.position) == least]


def awaited(states: Iterable[ProcessState], found: Mapping[Process, Diagnosis]) -> list[ProcessState]:
    """The processes that others wait for, by their stacks: those that do not wait while others do; empty if stacks do
    not tell."""
    seen = [state for state in states if state.process in found]
    others = [state for state in seen if not found[state.process].waits]
    return others if len(others) < len(seen) else []
