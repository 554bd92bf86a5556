"""CPU time since the previous look: of the cores that the job may use, of this process, and of its controller.

What the first exceeds the others by, over all processes of a host, was used by other programs (`run/host_cpu.py`).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from velodrome.machine import allowed_cores, busy_seconds
from velodrome.variables import CONTROLLER


@dataclass(frozen=True)
class _Reading:
    """Seconds so far."""

    clock: float
    busy: float
    own: float
    controller: float


class CpuTime:
    """Counts from its creation on; created before the process pins itself, it counts all cores of the job."""

    def __init__(self) -> None:
        self._cores = allowed_cores()
        self._controller = _controller()
        self._last = self._read()

    def since_last(self) -> dict[str, float] | None:
        """The fields of `events.models.CpuTime` since the previous call; None where the system does not count."""
        before, self._last = self._last, self._read()
        now = self._last
        if before is None or now is None:
            return None
        gaps = {name: getattr(now, name) - getattr(before, name) for name in ("busy", "own", "controller")}
        return {"seconds": round(now.clock - before.clock, 4),
                **{name: round(max(0.0, gap), 4) for name, gap in gaps.items()}}

    def _read(self) -> _Reading | None:
        busy = busy_seconds(self._cores)
        if busy is None:
            return None
        return _Reading(time.monotonic(), busy, own_seconds(), _process_seconds(self._controller))


def _controller() -> psutil.Process | None:
    with suppress(ValueError, psutil.Error):
        return psutil.Process(int(os.environ.get(CONTROLLER, "")))
    return None


def own_seconds() -> float:
    """CPU time of this process and of its children, those that ended included."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ended = sum(usage.ru_utime + usage.ru_stime for usage in used)
    if not _has_children():
        return ended
    return ended + sum(_process_seconds(child, with_ended=True) for child in _descendants(os.getpid()))


def _has_children() -> bool:
    """Whether there is a child that was not waited for; the question reaps none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _process_seconds(process: psutil.Process | None, *, with_ended: bool = False) -> float:
    if process is None:
        return 0.0
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + (times.children_user + times.children_system if with_ended else 0.0))
    return 0.0


def _descendants(pid: int) -> Iterator[psutil.Process]:
    """Processes that this one started and that still run.

    The kernel lists the children of each thread: that is far cheaper than looking at every process of the host.
    """
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError, psutil.Error):
                for child in map(int, file.read_text().split()):
                    yield psutil.Process(child)
                    yield from _descendants(child)
