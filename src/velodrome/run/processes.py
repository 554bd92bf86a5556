"""One process of a run, as its events and its end show it; and, as pure functions of these states, which process caused
a failure or holds the others up.

All times are the controller's when an event arrived, unless stated otherwise: hosts may have other clocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from velodrome.clusters.launcher import Diagnosis, Exit
from velodrome.clusters.plan import Process
from velodrome.events.fields import RESOURCES, resource_fields
from velodrome.events.models import (
    PHASES,
    ErrorEvent,
    Event,
    HelloEvent,
    PhaseEvent,
    ProgressEvent,
    ResourcesEvent,
)
from velodrome.events.result import Node
from velodrome.run.samples import CpuSeries, Key, Sample, Series, Span, Total

#: What a framework does to itself when a peer goes away; any other signal came from outside or is the cause.
_OWN_ABORT = "SIGABRT"
#: How long the others may still report after the first failure, by how certain its cause is: certain (a process was
#: killed, the user's code raised), possible (an engine's error), certainly not (a peer was lost: another one failed).
_GRACE_SECONDS = (0.3, 1.5, 5.0)
_DOUBT_OF_CAUSE = {"request": 0, "user": 0, "port": 0, "peer": 2}
#: Without a heartbeat for so long, a process is not running.
SILENT_SECONDS = 5.0


@dataclass
class ProcessState:
    """One process of a run: what its events add up to, where it is, and how it ended."""

    process: Process
    #: When it last did something new; at first, when it was started.
    last_progress: float = 0.0
    #: The last event that is no heartbeat.
    last_event: Event | None = None
    last_event_time: float = 0.0
    last_heartbeat: float | None = None
    steps: int = 0
    evaluated: int = 0
    waiting: bool = False
    phase: str = "start"
    #: Epoch and phase as numbers that only grow, to find out who is behind.
    position: tuple[float, float] = (0, -1)
    connected: bool = False
    finished: bool = False
    error: ErrorEvent | None = None
    error_time: float = 0.0
    exit: Exit | None = None
    exit_time: float = 0.0
    #: Whether the run continues without it.
    lost: bool = False

    #: Rows that are kept of its series; None for all.
    limit: int | None = None
    #: The name of its host by its own account.
    hostname: str = ""
    #: How far the controller's clock is ahead of the one of its host.
    offset: float | None = None
    #: The moment of its last event.
    latest: float = 0.0
    progress: ProgressEvent | None = None
    #: Bytes that its host exchanged: in, out and over loopback.
    network: tuple[int, int, int] = (0, 0, 0)
    phases: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.samples: Series[Sample] = Series(self.limit)
        self.spans: Series[Span] = Series(self.limit)
        #: Phases that have begun and not ended, and when.
        self.open_phases: dict[str, float] = {}
        self._used = {resource.name: Total() for resource in RESOURCES}
        self._last_sample: float | None = None
        #: Of this attempt at the job: from its `hello` on.
        self.cpu: CpuSeries | None = None

    def start(self, process: Process, now: float, since: float = math.inf) -> None:
        """Watch the process from now on: it is started, perhaps again, or it has been running since then."""
        self.process, self.last_progress = process, now
        self.exit, self.exit_time, self.lost = None, 0.0, False
        if self.last_event_time >= since:
            self.last_heartbeat = None if self.last_heartbeat is None else now
            return
        self.last_event, self.last_event_time, self.last_heartbeat = None, 0.0, None
        self.steps, self.evaluated, self.waiting = 0, 0, False
        self.phase, self.position, self.connected, self.finished = "start", (0, -1), False, False
        self.error, self.error_time = None, 0.0

    def add(self, event: Event, now: float, gap: float | None = None) -> None:
        """Update the state from an event that arrived now; `gap` are the seconds since the heartbeat before, if that
        one was left out."""
        if self.offset is None:
            self.offset = now - event.time
        if isinstance(event, HelloEvent):
            self.offset, self.hostname, self._last_sample = now - event.time, event.host, None
        moment = self.moment(event)
        if moment > self.latest:
            self.latest = moment
        if isinstance(event, ResourcesEvent):
            self._add_heartbeat(event, moment, now, gap)
            return
        self.last_event, self.last_event_time, self.last_progress = event, now, now
        match event:
            case ProgressEvent():
                self.progress = event
            case PhaseEvent():
                self._enter(event, moment)
            case HelloEvent() if event.heartbeat_seconds:
                self.last_heartbeat = now  # it may be stopped before its first one
            case ErrorEvent():
                self.error, self.error_time = event, now

    def moment(self, event: Event) -> float:
        """When an event of the process happened, by the controller's clock: one offset for all, so that delays do not
        distort how long something took."""
        return event.time + (self.offset or 0.0)

    def _add_heartbeat(self, event: ResourcesEvent, moment: float, now: float, gap: float | None) -> None:
        self.last_heartbeat, self.waiting = now, event.waiting
        if event.steps > self.steps or event.seen > self.evaluated:
            self.steps, self.evaluated, self.last_progress = event.steps, event.seen, now
        before, network = self._last_sample, event.network
        if gap is None:
            gap = 1.0 if before is None else moment - before
        # The last heartbeat may follow the one before at once: such a short time gives no rate.
        gap = max(0.2, gap)
        self._last_sample, used = moment, event.values()
        self.samples.add(Sample(
            moment, used, (network.inbound + network.out) / gap, network.loopback / gap,
            (network.inbound + network.loopback) / gap,
        ))
        for name, amount in used.items():
            if name in self._used:
                self._used[name].add(amount)
        if self.cpu is not None and event.cpu_time is not None:
            self.cpu.add(event.time, event.cpu_time)
        inbound, out, loopback = self.network
        self.network = inbound + network.inbound, out + network.out, loopback + network.loopback

    def _enter(self, event: PhaseEvent, moment: float) -> None:
        phase, ended = event.phase, event.state == "end"
        if not ended:
            self.open_phases[phase] = moment
        else:
            self.phases[phase] = self.phases.get(phase, 0.0) + (event.seconds or 0.0)
            if (start := self.open_phases.pop(phase, None)) is not None:
                self.spans.add(Span(phase, start, moment))
        if ended and phase == "import" and self.phase == "script":
            return  # what a script imports is a part of it
        self.phase = f"after {phase}" if ended else phase
        final = math.inf if phase in ("evaluate", "save") else 0
        self.position = (event.epoch or final, PHASES.index(phase) + (0.5 if ended else 0.0))
        # When the processes of a script connect, nobody knows.
        if phase in ("train", "script") or (phase == "connect" and ended):
            self.connected = True
        if ended and (phase == "script" or (phase == "evaluate" and event.part == "test")):
            self.finished = True

    @property
    def key(self) -> Key:
        return self.process.role, self.process.rank

    def record_exit(self, end: Exit, now: float) -> None:
        """Update the state from its end, noticed now."""
        self.exit, self.exit_time = end, now

    @property
    def alive(self) -> bool:
        return self.exit is None

    @property
    def failed(self) -> bool:
        """Whether it reported an error, or ended before it was finished."""
        return self.error is not None or (self.exit is not None and not (self.exit.is_success and self.finished))

    @property
    def only_serves(self) -> bool:
        """Whether it only answers requests of others: it reports nothing more after it has connected."""
        return self.phase == "after connect" or (self.process.role == "server" and self.phase == "script")

    def is_silent(self, limit: float, now: float) -> bool:
        """Whether its heartbeat stopped."""
        return self.last_heartbeat is not None and now - self.last_heartbeat > limit

    def __str__(self) -> str:
        return f"{self.process.name} on {self.process.host}"

    def describe_last_event(self, now: float) -> str:
        """Its last event, its age and where the process is, as the end of a sentence."""
        event = self.last_event
        if event is None:
            return "it never reported anything"
        what = f"phase {event.phase} {event.state}" if isinstance(event, PhaseEvent) else event.kind
        stopped = ", and its heartbeat stopped" if self.is_silent(SILENT_SECONDS, now) else ""
        return (f"its last event was {what!r} {now - self.last_event_time:.0f} s ago, in phase {self.phase!r} at step "
                f"{self.steps}{stopped}")

    def node(self) -> Node:
        """The process as a result has it."""
        return Node.model_validate({
            "role": self.process.role, "rank": self.process.rank, "host": self.process.host,
            **resource_fields({name: total.as_json() for name, total in self._used.items()}),
            "network_bytes": dict(zip(("in", "out", "loopback"), self.network, strict=True)),
            "phases": {name: round(seconds, 4) for name, seconds in self.phases.items()},
        })


@dataclass(frozen=True)
class Failure:
    """Which process ended the run, and why, as one sentence."""

    message: str
    role: str | None = None
    rank: int | None = None
    host: str | None = None
    cause: str = "engine"
    traceback: str | None = None
    stack: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}


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


def script_is_over(states: Iterable[ProcessState]) -> bool:
    """Whether a script has ended well on every worker, and no server failed before: servers need not end by themselves,
    and one may fail only because nobody is left."""
    states = list(states)
    training = [state for state in states if state.process.role != "server"]
    if any(state.alive or state.failed for state in training):
        return False
    ended = max(state.last_event_time for state in training)
    return not any(state.failed and (state.error_time or state.exit_time) < ended
                   for state in states if state.process.role == "server")


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


def awaited(states: Iterable[ProcessState], diagnoses: Mapping[Process, Diagnosis]) -> list[ProcessState]:
    """The processes that others wait for, by their stacks: those that do not wait while others do; empty if stacks do
    not tell."""
    diagnosed = [state for state in states if state.process in diagnoses]
    others = [state for state in diagnosed if not diagnoses[state.process].waits]
    return others if len(others) < len(diagnosed) else []
