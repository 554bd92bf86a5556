"""The heartbeat of a training process: every second its CPU, memory, its host's cores and network, and where it is."""

from __future__ import annotations

import math
import os
import threading
from contextlib import suppress

import psutil

from velodrome.variables import MEASURE
from velodrome.worker.context import Status
from velodrome.worker.cpu_time import CpuTime
from velodrome.worker.emitter import Emitter

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


class Sampler(threading.Thread):
    """Emits a `resources` event every so many seconds until stopped."""

    def __init__(self, events: Emitter, status: Status, cpu_time: CpuTime, interval: float = INTERVAL) -> None:
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
                cpu_percent=round(self._process.cpu_percent(), 1),
                memory_bytes=self._process.memory_info().rss,
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
