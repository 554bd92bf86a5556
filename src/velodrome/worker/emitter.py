"""Writes what a training process reports: one event a line, to a descriptor that nothing else writes to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from velodrome.events.lines import PREFIX, Kind, Phase, to_line


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
