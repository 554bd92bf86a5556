"""What the supervisor knows of one process from its events and its end, and which of them is to blame for a failure."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from velodrome.cluster.launcher import Started
from velodrome.cluster.plan import Process
from velodrome.events.lines import PHASES
from velodrome.run.outcome import Failure

#: What a framework does to itself when a peer goes away; any other silent end came from outside or is the cause.
_OWN_ABORT = {-signal.SIGABRT}
#: How long the others may still speak after the first failure, by how surely what we know is a cause: surely (somebody
#: was killed, the user's code raised), maybe (an engine's error), surely not (a peer was lost: somebody else failed).
_GRACE_SECONDS = (0.3, 1.5, 5.0)
#: Without a heartbeat for so long, a process is not running.
SILENT_SECONDS = 5.0


@dataclass
class Watched:
    """One process of a run while it lives."""

    started: Started
    buffer: bytes = b""
    last_event: dict[str, Any] = field(default_factory=dict)
    last_heartbeat: float | None = None
    last_advance: float = field(default_factory=time.monotonic)
    steps: int = 0
    #: Batches of evaluations.
    seen: int = 0
    waiting: bool = False
    phase: str = "start"
    #: Epoch and phase as numbers that only grow, to tell who is behind.
    place: tuple[float, float] = (0, -1)
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
        kind = event["kind"]
        if kind == "resources":
            self.last_heartbeat = now
            self.waiting = bool(event.get("waiting"))
            done = event.get("steps", 0), event.get("seen", 0)
            if done[0] > self.steps or done[1] > self.seen:
                self.steps, self.seen = done
                self.last_advance = now
            return
        self.last_event, self.last_advance = event, now
        if kind == "phase":
            self._enter(event)
        elif kind == "error":
            self.error, self.error_time = event, now

    def _enter(self, event: dict[str, Any]) -> None:
        phase, ended = event["phase"], event["state"] == "end"
        self.phase = f"after {phase}" if ended else phase
        last = math.inf if phase in ("evaluate", "save") else 0
        self.place = (event.get("epoch", last), PHASES.index(phase) + (0.5 if ended else 0.0))
        if phase == "train" or (phase == "connect" and ended):
            self.connected = True
        if phase == "evaluate" and event.get("part") == "test" and ended:
            self.finished = True

    def has_ended(self) -> bool:
        """Whether it ended since this was last asked."""
        if self.alive and (code := self.started.exit_code()) is not None:
            self.exit_code, self.exit_time = code, time.monotonic()
            return True
        return False

    @property
    def failed(self) -> bool:
        """Whether it said an error, or left before it was done."""
        return self.error is not None or (self.exit_code is not None and not (self.exit_code == 0 and self.finished))

    @property
    def only_serves(self) -> bool:
        """Whether it does what others tell it: it says nothing more after it has connected."""
        return self.phase == "after connect"

    def silent(self, limit: float, now: float) -> bool:
        """Whether its heartbeat stopped."""
        return self.last_heartbeat is not None and now - self.last_heartbeat > limit

    def describe(self) -> str:
        return f"{self.process.name} on {self.process.host}"

    def last_said(self) -> str:
        if not self.last_event:
            return "it never said anything"
        kind, seconds = self.last_event["kind"], max(0.0, time.time() - self.last_event["time"])
        what = f"{kind} {self.last_event['phase']} {self.last_event['state']}" if kind == "phase" else kind
        stopped = ", and its heartbeat stopped" if self.silent(SILENT_SECONDS, time.monotonic()) else ""
        return f"its last event was {what!r} {seconds:.0f} s ago, in phase {self.phase!r} at step {self.steps}{stopped}"


def _ended_how(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ": somebody ended it, or the system ran out of memory" if code == -signal.SIGKILL else ""
        return f"was ended by {name}{hint}"
    return f"exited with code {code} before it was finished"


@dataclass(frozen=True, order=True)
class _Suspect:
    """A process that failed: how sure it is that it is not the cause (an index of the grace), when, and what to say."""

    doubt: int
    time: float
    failure: Failure = field(compare=False)


def _suspect(watched: Watched) -> _Suspect:
    place = {"role": watched.process.role, "rank": watched.process.rank, "host": watched.process.host}
    if watched.error is not None:
        cause = watched.error.get("cause", "engine")
        doubt = {"request": 0, "user": 0, "port": 0, "peer": 2}.get(cause, 1)
        message = f"{watched.describe()}: {watched.error['message']}"
        failure = Failure(message, **place, cause=cause, traceback=watched.error.get("traceback"))  # type: ignore[arg-type]
        return _Suspect(doubt, watched.error_time, failure)
    assert watched.exit_code is not None
    failure = Failure(f"{watched.describe()} {_ended_how(watched.exit_code)}", **place, cause="exit")  # type: ignore[arg-type]
    # Who only serves leaves when nobody is there to be served.
    left = watched.exit_code == 0 and watched.only_serves
    return _Suspect(2 if left else 1 if watched.exit_code in _OWN_ABORT else 0, watched.exit_time, failure)


def blame(processes: Iterable[Watched], now: float = math.inf) -> Failure | None:
    """The first failure among those that are causes and not consequences; None while a surer cause may yet show."""
    suspects = sorted(_suspect(watched) for watched in processes if watched.failed)
    if not suspects or now - min(suspect.time for suspect in suspects) < _GRACE_SECONDS[suspects[0].doubt]:
        return None
    return suspects[0].failure


def late(processes: Iterable[Watched], limit: float, now: float) -> list[Watched]:
    """The processes that keep the others from connecting, when nobody came further for as long as a start may take."""
    alive = [watched for watched in processes if watched.alive]
    missing = [watched for watched in alive if not watched.connected]
    if not missing or any(now - watched.last_advance <= limit for watched in alive):
        return []
    silent = [w for w in alive if not w.last_event or w.silent(min(limit, SILENT_SECONDS), now)]
    # Who is in `connect` waits for those who are not.
    return silent or [watched for watched in missing if watched.phase != "connect"] or missing


def stalled(processes: Iterable[Watched], limit: float, now: float) -> list[Watched]:
    """The processes that hold everybody up: whose heartbeat stopped, or who do not wait for others."""
    alive = [watched for watched in processes if watched.alive]
    if not all(watched.connected for watched in alive):
        return []
    if silent := [watched for watched in alive if watched.silent(limit, now)]:
        return silent
    if not alive or any(now - watched.last_advance <= limit for watched in alive):
        return []
    training = [watched for watched in alive if not watched.only_serves] or alive
    behind = [watched for watched in training if not watched.waiting] or training
    least = min((watched.steps, *watched.place) for watched in behind)
    return [watched for watched in behind if (watched.steps, *watched.place) == least]
