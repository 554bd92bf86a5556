"""What samples of a run add up to: rows over time, the cores in use on a host, and how fast the run trained."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from velodrome.events.fields import CpuTime, Network
from velodrome.events.models import HelloEvent, Pace, SharesEvent, Warmup
from velodrome.events.result import Host, HostCpu, Shares, Throughput

T = TypeVar("T")
#: Role and rank.
Key = tuple[str, int]


class Series(Generic[T]):
    """Rows over time. With a limit they are thinned out: at twice as many, every other one is dropped."""

    def __init__(self, limit: int | None = None) -> None:
        self.rows: list[T] = []
        self._limit = limit
        self._every = 1
        self._count = 0

    def add(self, row: T) -> None:
        self._count += 1
        if self._count % self._every:
            return
        self.rows.append(row)
        if self._limit is not None and len(self.rows) >= 2 * self._limit:
            del self.rows[::2]
            self._every *= 2


class Span(NamedTuple):
    """A phase of a process, from when to when."""

    phase: str
    start: float
    end: float


class Sample(NamedTuple):
    """A heartbeat: when, what the process used of each resource, and bytes per second of its host: over its network,
    over loopback, and what it received, within itself included."""

    moment: float
    used: Mapping[str, float]
    network_rate: float
    loopback_rate: float
    inbound_rate: float


@dataclass
class Total:
    """Mean, minimum and maximum of what was added."""

    count: int = 0
    whole: float = 0
    least: float | None = None
    most: float | None = None

    def add(self, value: float) -> None:
        self.count += 1
        self.whole += value
        self.least = value if self.least is None or value < self.least else self.least
        self.most = value if self.most is None or value > self.most else self.most

    def as_json(self) -> dict[str, float | None]:
        mean = round(self.whole / self.count, 2) if self.count else None
        return {"mean": mean, "min": self.least, "max": self.most}


class CpuSeries:
    """The CPU times of one process by the clock of its host, as its heartbeats reported them."""

    def __init__(self) -> None:
        #: Of each heartbeat its moment, the seconds that it is about, and core-seconds.
        self._columns = {name: array("d") for name in ("moment", "seconds", "busy", "own", "controller")}

    def __bool__(self) -> bool:
        return bool(self._columns["moment"])

    def add(self, moment: float, sample: CpuTime) -> None:
        if sample.seconds > 0:
            values = (moment, sample.seconds, sample.busy, sample.own, sample.controller)
            for column, value in zip(self._columns.values(), values, strict=True):
                column.append(value)

    @property
    def start(self) -> float:
        return self._columns["moment"][0] - self._columns["seconds"][0]

    @property
    def end(self) -> float:
        return self._columns["moment"][-1]

    def total(self, name: str, start: float, end: float) -> float:
        """Core-seconds between two moments; a sample that lies only partly between them counts in part."""
        amount = 0.0
        columns = (self._columns["moment"], self._columns["seconds"], self._columns[name])
        for moment, seconds, used in zip(*columns, strict=True):
            inside = min(moment, end) - max(moment - seconds, start)
            amount += used * min(1.0, max(0.0, inside / seconds))
        return amount


def host_cpu(processes: Sequence[CpuSeries], beside: Sequence[CpuSeries] = ()) -> HostCpu | None:
    """The cores in use on a host while all of these processes, which are its part of a run, were alive.

    `beside` are the run's processes on other hosts of the same machine, such as emulated ones: not foreign either.

    All of them see the same host and the same controller, each at moments of its own: the mean of what they saw counts.
    None if they were never alive at the same time, or report nothing.
    """
    seen = [series for series in processes if series]
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


def waited(event: SharesEvent, events: Iterable[SharesEvent]) -> float:
    """Seconds that a process waited for others in its collectives. Where that was not measured: the rank that arrives
    last at a collective waits for nobody, so what it spends there is communication, and what the others spend beyond
    that is waiting."""
    if event.waited_seconds is not None:
        return min(event.waited_seconds, event.collective_seconds)
    return event.collective_seconds - min(each.collective_seconds for each in events)


def shares_of(events: Sequence[SharesEvent]) -> Shares | None:
    """How a step divides into computing, waiting for others and communicating; None where no process reported it."""
    whole = sum(event.train_seconds for event in events)
    if whole <= 0:
        return None
    inside = sum(event.collective_seconds for event in events)
    wait = sum(waited(event, events) for event in events)
    return Shares(compute=1 - inside / whole, wait=wait / whole, communicate=(inside - wait) / whole)


def pace_of_all(paces: Sequence[Pace]) -> Pace | None:
    """The pace of all processes together: their examples add up, and the slowest one decides how long it took."""
    counted = [pace for pace in paces if pace.examples] or list(paces)
    if not counted:
        return None
    warmup = Warmup(
        steps=max(pace.warmup.steps for pace in counted), examples=sum(pace.warmup.examples for pace in counted),
        seconds=max(pace.warmup.seconds for pace in counted),
    )
    return Pace(
        seconds=max(pace.seconds for pace in counted), examples=sum(pace.examples for pace in counted),
        steps=max(pace.steps for pace in counted), warmup=warmup,
    )


def throughput(pace: Pace | None, batch: int) -> Throughput:
    """Examples and batches per second of the training phase, without the warm-up steps.

    Where the batch is not known (0), batches are the steps that were reported.
    """
    nothing = Throughput(examples_per_second=None, batches_per_second=None, warmup_steps=0)
    if not pace:
        return nothing
    seconds = pace.seconds - pace.warmup.seconds
    examples = pace.examples - pace.warmup.examples
    steps = pace.warmup.steps
    if seconds <= 0 or examples <= 0:
        seconds, examples, steps = pace.seconds, pace.examples, 0
    if seconds <= 0 or examples <= 0:
        return nothing
    rate = examples / seconds
    batches = rate / batch if batch else (pace.steps - steps) / seconds
    return Throughput(
        examples_per_second=round(rate, 3), batches_per_second=round(batches, 4), warmup_steps=steps
    )


@dataclass
class HostSummary:
    """A host as its first process described it, and the CPU times of all of its processes."""

    about: HelloEvent
    processes: dict[Key, CpuSeries] = field(default_factory=dict)
    #: By the counters of the host itself, where the launcher reads them.
    network: Network | None = None

    def host(self, others: Iterable[HostSummary] = ()) -> Host:
        """The host as a result has it; `others` are all hosts of the run, which may share its machine."""
        beside = [series for other in others if other is not self and self._shares_machine(other)
                  for series in other.processes.values()]
        event, cpu = self.about, host_cpu(list(self.processes.values()), beside)
        fields = {
            "hostname": event.host, "interpreter": event.interpreter, "python": event.python,
            "versions": event.versions, "cores": event.cores, "memory_bytes": event.memory_bytes, "gpus": event.gpus,
        }
        more = {"cpu": cpu, "network_bytes": self.network}
        return Host.model_validate(fields | {name: value for name, value in more.items() if value is not None})

    def _shares_machine(self, other: HostSummary) -> bool:
        return self.about.machine is not None and other.about.machine == self.about.machine
