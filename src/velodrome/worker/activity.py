"""Progress of a process that reports none while it computes: a script, or a framework that compiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from velodrome.worker.context import Status
from velodrome.worker.cpu_time import own_seconds

#: A process that uses less than this share of a core does nothing.
IDLE = 0.05
#: Seconds between two looks.
PERIOD = 1.0


@contextmanager
def computing(status: Status) -> Iterator[None]:
    """Count a process that uses its processor as one that makes progress: nothing else can tell it from one that hangs.
    One that was stopped does not look."""
    done = threading.Event()

    def watch() -> None:
        before, mark = own_seconds(), time.monotonic()
        while not done.wait(PERIOD):
            used, now = own_seconds(), time.monotonic()
            if used - before > IDLE * (now - mark):
                status.seen += 1
            before, mark = used, now

    threading.Thread(target=watch, name="velodrome-activity", daemon=True).start()
    try:
        yield
    finally:
        done.set()
