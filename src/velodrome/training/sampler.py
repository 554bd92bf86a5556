"""What a training process uses of its host: CPU time, memory and network, reported every second as its heartbeat.

Of the CPU time of all cores, what the processes of the job and their controllers did not use was used by other
programs (`run/state.py`)."""

from __future__ import annotations

import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from velodrome.events.fields import resource_fields
from velodrome.machine import allowed_cores, busy_seconds
from velodrome.training.context import Emitter, Status
from velodrome.variables import CONTROLLER, MEASURE


class _Reading(NamedTuple):
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
        clock, *used = (round(after - then, 4) for after, then in zip(now, before, strict=True))
        return {"seconds": clock, **{name: max(0.0, gap) for name, gap in zip(_Reading._fields[1:], used, strict=True)}}

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


INTERVAL = 1.0


def sampling_interval() -> float:
    """Seconds between samples; `VELODROME_MEASURE` sets others, and 0 for none, to find out what sampling costs."""
    try:
        seconds = float(os.environ.get(MEASURE, INTERVAL))
    except ValueError:
        return INTERVAL
    return max(seconds, 0.0) if math.isfinite(seconds) else INTERVAL


def network() -> tuple[int, int, int]:
    """Bytes that this host received and sent so far, loopback apart, and bytes over loopback."""
    received = sent = loopback = 0
    for name, counters in psutil.net_io_counters(pernic=True).items():
        if name == "lo" or name.startswith("lo0"):
            loopback += counters.bytes_recv
        else:
            received += counters.bytes_recv
            sent += counters.bytes_sent
    return received, sent, loopback


#: How each resource (`events/fields.py`) is read of a process.
READ: Mapping[str, Callable[[psutil.Process], float]] = {
    "cpu_percent": lambda process: round(process.cpu_percent(), 1),
    "memory_bytes": lambda process: process.memory_info().rss,
}


class Sampler(threading.Thread):
    """Emits a `resources` event at every interval until stopped."""

    def __init__(self, events: Emitter, status: Status, cpu_time: CpuTime, interval: float) -> None:
        super().__init__(name="velodrome-sampler", daemon=True)
        self._events, self._status, self._cpu_time = events, status, cpu_time
        self._interval, self._done = interval, threading.Event()
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._network = network()

    def run(self) -> None:
        while not self._done.wait(self._interval):
            self.sample()

    def sample(self) -> None:
        with suppress(psutil.Error, OSError):
            before, self._network = self._network, network()
            received, sent, loopback = (now - then for now, then in zip(self._network, before, strict=True))
            cpu_time = self._cpu_time.since_last()
            self._events.emit(
                "resources",
                **resource_fields({name: read(self._process) for name, read in READ.items()}),
                network={"in": received, "out": sent, "loopback": loopback},
                steps=self._status.steps,
                seen=self._status.seen,
                waiting=self._status.waiting,
                **({} if cpu_time is None else {"cpu_time": cpu_time}),
            )

    def stop(self) -> None:
        """End with a last sample, so that a run of less than a second has one too."""
        self._done.set()
        self.sample()


@contextmanager
def heartbeat(events: Emitter, status: Status, cpu_time: CpuTime) -> Iterator[None]:
    """Report every second what the process uses, and its progress, until the block ends."""
    interval = sampling_interval()
    if interval == 0:
        yield
        return
    sampler = Sampler(events, status, cpu_time, interval)
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()


#: A process that uses less than this share of a core does nothing.
IDLE = 0.05
#: Seconds between checks.
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
