"""What the supervisor knows of one process from its events and its end, and which of them is to blame for a failure."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from velodrome.cluster.local import Started
from velodrome.cluster.plan import Process
from velodrome.run.outcome import Failure

#: What a framework does to itself when a peer goes away; any other signal came from outside or is the true cause.
_OWN_ABORT = {-signal.SIGABRT}


@dataclass
class Watched:
    """One process of a run while it lives."""

    started: Started
    buffer: bytes = b""
    last_event: dict[str, Any] = field(default_factory=dict)
    last_heartbeat: float | None = None
    last_advance: float = field(default_factory=time.monotonic)
    steps: int = 0
    waiting: bool = False
    phase: str = "start"
    connected: bool = False
    finished: bool = False
    error: dict[str, Any] | None = None
    error_time: float = 0.0
    exit_code: int | None = None
    exit_time: float = 0.0
    lost: bool = False

    @property
    def process(self) -> Process:
        return self.started.process

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    def take(self, event: dict[str, Any]) -> None:
        """Remember what an event says about where the process is."""
        now = time.monotonic()
        self.last_event = event
        kind = event["kind"]
        if kind == "resources":
            self.last_heartbeat = now
            self.waiting = bool(event.get("waiting"))
            if event.get("steps", 0) > self.steps:
                self.steps = event["steps"]
                self.last_advance = now
            return
        self.last_advance = now
        if kind == "phase":
            self.phase = event["phase"] if event["state"] == "begin" else f"after {event['phase']}"
            if event["phase"] in ("build", "data", "train") or (event["phase"], event["state"]) == ("connect", "end"):
                self.connected = True
            if event["phase"] == "evaluate" and event.get("part") == "test" and event["state"] == "end":
                self.finished = True
        elif kind == "error":
            self.error, self.error_time = event, now

    def check_end(self) -> None:
        if self.alive and (code := self.started.exit_code()) is not None:
            self.exit_code, self.exit_time = code, time.monotonic()

    def describe(self) -> str:
        return f"{self.process.name} on {self.process.host}"

    def last_said(self) -> str:
        if not self.last_event:
            return "it never said anything"
        kind, seconds = self.last_event["kind"], max(0.0, time.time() - self.last_event["time"])
        what = f"{kind} {self.last_event['phase']}" if kind == "phase" else kind
        return f"its last event was {what!r} {seconds:.0f} s ago, in phase {self.phase!r} at step {self.steps}"


def _ended_how(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ": the system may be out of memory" if code == -signal.SIGKILL else ""
        return f"was ended by {name}{hint}"
    return f"exited with code {code} before it was finished"


def _candidate(watched: Watched) -> tuple[int, float, Failure] | None:
    """How likely a process is the cause (less is more), when it failed, and what to say if it is."""
    place = {"role": watched.process.role, "rank": watched.process.rank, "host": watched.process.host}
    if watched.error is not None:
        cause = watched.error.get("cause", "engine")
        weight = {"request": 0, "user": 0, "port": 0, "peer": 2}.get(cause, 1)
        message = f"{watched.describe()}: {watched.error['message']}"
        failure = Failure(message, **place, cause=cause, traceback=watched.error.get("traceback"))  # type: ignore[arg-type]
        return weight, watched.error_time, failure
    if watched.exit_code is None or (watched.exit_code == 0 and watched.finished):
        return None
    weight = 0 if watched.exit_code < 0 and watched.exit_code not in _OWN_ABORT else 1
    failure = Failure(f"{watched.describe()} {_ended_how(watched.exit_code)}", **place, cause="exit")  # type: ignore[arg-type]
    return weight, watched.exit_time, failure


def blame(processes: Iterable[Watched]) -> Failure | None:
    """The failure that came first among those that are causes and not consequences."""
    found = [candidate for watched in processes if (candidate := _candidate(watched)) is not None]
    return min(found, key=lambda candidate: candidate[:2])[2] if found else None


def stalled(processes: Iterable[Watched], limit: float, now: float) -> list[Watched]:
    """The processes that hold everybody up: whose heartbeat stopped, or who do not wait for others."""
    alive = [watched for watched in processes if watched.alive]
    silent = [w for w in alive if w.last_heartbeat is not None and now - w.last_heartbeat > limit]
    if silent:
        return silent
    if any(now - watched.last_advance <= limit for watched in alive):
        return []
    training = [watched for watched in alive if watched.phase != "after connect"] or alive
    busy = [watched for watched in training if not watched.waiting]
    behind = busy or training
    least = min(watched.steps for watched in behind)
    return [watched for watched in behind if watched.steps == least]
