"""The one language between training processes and everything else: a JSON object a line, behind a fixed prefix."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

PREFIX = "@velodrome "

Kind = Literal[
    "phase", "progress", "epoch", "resources", "staleness", "shares", "checkpoint", "warning", "error", "result", "lost"
]
KINDS: tuple[str, ...] = get_args(Kind)

Phase = Literal["import", "connect", "data", "build", "train", "evaluate", "save"]
PHASES: tuple[str, ...] = get_args(Phase)

#: Why a process ends early. `request`: what was asked cannot be done (exit code 2). `user`: the user's own code raised.
#: `peer`: another process of the job went away, so this one is not the cause. `port`: try again with another port.
Cause = Literal["request", "user", "peer", "port", "engine"]


def _finite(value: Any) -> Any:
    """NaN and infinity have no place in JSON: they travel as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def to_line(event: dict[str, Any]) -> str:
    return json.dumps(_finite(event), separators=(",", ":"), default=float)


def parse(line: str) -> dict[str, Any] | None:
    """The event in a line of a process's output, or None for a line of its log."""
    if not line.startswith(PREFIX):
        return None
    try:
        event = json.loads(line[len(PREFIX) :])
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("kind") in KINDS else None


class Emitter:
    """Writes the events of one process to a file descriptor that nothing else writes to."""

    def __init__(self, descriptor: int, role: str, rank: int) -> None:
        self._descriptor = descriptor
        self._role, self._rank = role, rank
        self._lock = threading.Lock()

    def emit(self, kind: Kind, **fields: Any) -> None:
        event = {"time": round(time.time(), 4), "role": self._role, "rank": self._rank, "kind": kind, **fields}
        data = (PREFIX + to_line(event) + "\n").encode()
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]

    @contextmanager
    def phase(self, name: Phase, **fields: Any) -> Iterator[None]:
        """Say that a phase begins, and that it ended with the seconds it took; silent about its end if it raises."""
        self.emit("phase", phase=name, state="begin", **fields)
        start = time.perf_counter()
        yield
        self.emit("phase", phase=name, state="end", seconds=round(time.perf_counter() - start, 6), **fields)
