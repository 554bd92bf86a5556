"""How many cores of a host a run used, and how many other programs did, from the heartbeats of the run's processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from velodrome.events.fields import CpuTime
from velodrome.events.models import ResourcesEvent
from velodrome.events.result import HostCpu


@dataclass
class CpuSeries:
    """The CPU times of one process, as its heartbeats reported them."""

    samples: list[tuple[float, CpuTime]] = field(default_factory=list)

    def add(self, event: ResourcesEvent) -> None:
        if event.cpu_time is not None and event.cpu_time.seconds > 0:
            self.samples.append((event.time, event.cpu_time))

    @property
    def start(self) -> float:
        end, first = self.samples[0]
        return end - first.seconds

    @property
    def end(self) -> float:
        return self.samples[-1][0]

    def total(self, name: str, start: float, end: float) -> float:
        """Core-seconds between two moments; a sample that lies only partly between them counts in part."""
        found = 0.0
        for moment, sample in self.samples:
            inside = min(moment, end) - max(moment - sample.seconds, start)
            found += getattr(sample, name) * min(1.0, max(0.0, inside / sample.seconds))
        return found


def host_cpu(processes: Sequence[CpuSeries], beside: Sequence[CpuSeries] = ()) -> HostCpu | None:
    """The cores in use on a host while all of these processes, which are its part of a run, were alive.

    `beside` are the run's processes on other hosts of the same machine, such as emulated ones: not foreign either.

    All of them see the same host and the same controller, each at moments of its own: the mean of what they saw counts.
    None if they were never alive at the same time, or report nothing.
    """
    seen = [series for series in processes if series.samples]
    if not seen:
        return None
    start, end = max(series.start for series in seen), min(series.end for series in seen)
    seconds = end - start
    if seconds <= 0:
        return None
    busy, controller = (
        sum(series.total(name, start, end) for series in seen) / len(seen) / seconds for name in ("busy", "controller")
    )
    own = sum(series.total("own", start, end) for series in (*seen, *beside)) / seconds + controller
    return HostCpu(
        busy=round(busy, 3), own=round(own, 3), foreign=round(max(0.0, busy - own), 3), seconds=round(seconds, 3)
    )
