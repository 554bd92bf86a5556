"""What the supervisor knows of one process from its events and its end. All times are the controller's monotonic clock
at the arrival of an event: hosts may have other clocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from velodrome.clusters.launcher import Exit
from velodrome.clusters.plan import Process
from velodrome.events.models import PHASES, ErrorEvent, Event, HelloEvent, PhaseEvent, ResourcesEvent

#: Without a heartbeat for so long, a process is not running.
SILENT_SECONDS = 5.0


@dataclass
class ProcessState:
    """One process of a run."""

    process: Process
    #: When it last did something new; at first, when it was started.
    last_progress: float
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

    def record(self, event: Event, now: float) -> None:
        """Update the state from an event that arrived now."""
        if isinstance(event, ResourcesEvent):
            self.last_heartbeat, self.waiting = now, event.waiting
            if event.steps > self.steps or event.seen > self.evaluated:
                self.steps, self.evaluated, self.last_progress = event.steps, event.seen, now
            return
        self.last_event, self.last_event_time, self.last_progress = event, now, now
        if isinstance(event, PhaseEvent):
            self._enter(event)
        elif isinstance(event, HelloEvent) and event.heartbeat_seconds:
            self.last_heartbeat = now  # it may be stopped before its first one
        elif isinstance(event, ErrorEvent):
            self.error, self.error_time = event, now

    def _enter(self, event: PhaseEvent) -> None:
        phase, ended = event.phase, event.state == "end"
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
        return self.phase == "after connect"

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
