"""The state of a run: what its events add up to, read one by one: samples per process, epochs, hosts, times, pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from velodrome.catalog.base import SCRIPT_LABEL
from velodrome.clusters.plan import Plan
from velodrome.events.fields import RESOURCES, CpuTime, HistoryRow, Network, resource_fields
from velodrome.events.models import (
    DataEvent,
    EpochEvent,
    EventBase,
    FaultEvent,
    HelloEvent,
    Pace,
    PaceEvent,
    PhaseEvent,
    ResourcesEvent,
    ResultEvent,
    SharesEvent,
    StalenessEvent,
    TrafficEvent,
    Warmup,
    WarningEvent,
)
from velodrome.events.result import FaultRecord, Host, HostCpu, Node, Seconds, Shares, Staleness, Throughput
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of


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
        seconds = 0.0
        for moment, sample in self.samples:
            inside = min(moment, end) - max(moment - sample.seconds, start)
            seconds += getattr(sample, name) * min(1.0, max(0.0, inside / sample.seconds))
        return seconds


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


#: Role and rank.
Process = tuple[str, int]


@dataclass
class NodeSamples:
    """What the events of one process add up to."""

    role: str
    rank: int
    host: str
    #: The samples of each resource.
    samples: dict[str, list[float]] = field(default_factory=lambda: {resource.name: [] for resource in RESOURCES})
    network: Counter[str] = field(default_factory=Counter)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, event: EventBase) -> None:
        if isinstance(event, ResourcesEvent):
            values = event.values()
            for name, samples in self.samples.items():
                if name in values:
                    samples.append(values[name])
            self.network.update(
                {"in": event.network.inbound, "out": event.network.out, "loopback": event.network.loopback}
            )
        elif isinstance(event, PhaseEvent) and event.state == "end":
            self.phases[event.phase] = self.phases.get(event.phase, 0.0) + (event.seconds or 0.0)

    def node(self) -> Node:
        return Node.model_validate({
            "role": self.role,
            "rank": self.rank,
            "host": self.host,
            **resource_fields({name: _spread(samples) for name, samples in self.samples.items()}),
            "network_bytes": {name: self.network[name] for name in ("in", "out", "loopback")},
            "phases": {name: round(seconds, 4) for name, seconds in self.phases.items()},
        })


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"mean": None, "min": None, "max": None}
    return {"mean": round(sum(values) / len(values), 2), "min": min(values), "max": max(values)}


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


def _history_row(event: EpochEvent, task: Task) -> HistoryRow:
    return HistoryRow.model_validate({
        "epoch": event.epoch,
        **task.history(train=event.train.as_json(), validation=event.validation.as_json()),
        **({} if event.learning_rate is None else {"learning_rate": event.learning_rate}),
        "seconds": event.seconds,
        "evaluate_seconds": event.evaluate_seconds,
    })


@dataclass
class HostSummary:
    """A host as its first process described it, and the CPU times of all of its processes."""

    about: HelloEvent
    processes: dict[Process, CpuSeries] = field(default_factory=dict)
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


@dataclass
class RunState:
    """What the events of a run add up to, read one by one: `add` takes each."""

    started: float
    nodes: Mapping[Process, NodeSamples]
    task: Task
    epochs: dict[int, HistoryRow] = field(default_factory=dict)
    final: ResultEvent | None = None
    data: DataEvent | None = None
    #: How fast each process of a script trained.
    paces: dict[Process, Pace] = field(default_factory=dict)
    updates: list[StalenessEvent] = field(default_factory=list)
    collectives: list[SharesEvent] = field(default_factory=list)
    hosts: dict[str, HostSummary] = field(default_factory=dict)
    #: What the processes of the first rank have installed: they may run in another environment than the controller.
    versions: dict[str, str] = field(default_factory=dict)
    _cpu: dict[Process, CpuSeries] = field(default_factory=dict)
    #: When the first training step began, by the controller's clock.
    first_step: float | None = None
    #: When the chief of a script of the user's own began, and when its imports were over, by the controller's clock.
    _script: PhaseEvent | None = None
    _imported: float | None = None
    #: What the run warned of: the keys, in their order.
    warnings: dict[str, None] = field(default_factory=dict)
    faults: dict[str, FaultRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, started: float) -> RunState:
        """The state of a planned run before its first event."""
        nodes = {(p.role, p.rank): NodeSamples(p.role, p.rank, p.host) for p in plan.processes}
        return cls(started, nodes, task_of(plan.job))

    def add(self, event: EventBase) -> None:
        process = (event.role or "", -1 if event.rank is None else event.rank)
        if (node := self.nodes.get(process)) is not None:
            node.add(event)
        # A run that was resumed has events of its earlier attempts, too.
        is_earlier = event.controller_time < self.started
        match event:
            case HelloEvent() if not is_earlier:
                host = self.hosts.setdefault(event.host, HostSummary(event))
                # Also of a process that is started again.
                self._cpu[process] = host.processes[process] = CpuSeries()
                if event.rank == 0:
                    self.versions |= {"python": event.python, **event.versions}
            case ResourcesEvent() if not is_earlier and process in self._cpu:
                self._cpu[process].add(event)
            case DataEvent():
                self.data = event
            case EpochEvent():
                self.epochs[event.epoch] = _history_row(event, self.task)
            case ResultEvent():
                self.final = event
            case PaceEvent() if not is_earlier:
                self.paces[process] = event.pace
            case PhaseEvent(phase="script", state="begin", rank=0) if not is_earlier:
                self._script = event
                self.epochs.clear()  # a script that is resumed begins at the beginning
            case PhaseEvent(phase="import", state="end") if not is_earlier and self._of_script:
                self._imported = self._imported or self._when(event)
            case StalenessEvent():
                self.updates.append(event)
            case SharesEvent():
                self.collectives.append(event)
            case FaultEvent() if not is_earlier:
                self._add_fault(event)
            case TrafficEvent() if not is_earlier and event.host in self.hosts:
                self.hosts[event.host].network = event.network
            case WarningEvent():
                self.warnings[event.message] = None
            case PhaseEvent(phase="train") if not is_earlier and self.first_step is None:
                self.first_step = event.controller_time if not self._of_script else self._when(event)

    @property
    def _of_script(self) -> bool:
        return self.task.name == SCRIPT_LABEL

    def _when(self, event: PhaseEvent) -> float | None:
        """When the chief of a script got there, by the controller's clock; None for other ranks.

        Epochs and evaluations are those of the chief, so start-up is, too. A script may report an epoch when it is
        over: what counts is the time that the event states, not when it came.
        """
        if self._script is None or event.rank != 0:
            return None
        return self._script.controller_time + (event.time - self._script.time)

    def _add_fault(self, event: FaultEvent) -> None:
        seconds = max(0.0, round(event.controller_time - self.started, 4))
        if event.state == "begin":
            about = event.model_dump(include={"fault", "action", "target", "host", "factor"}, exclude_none=True)
            self.faults[event.fault] = FaultRecord.model_validate({**about, "start": seconds, "end": None})
        elif event.fault in self.faults:
            self.faults[event.fault] = self.faults[event.fault].model_copy(update={"end": seconds})

    @property
    def shares(self) -> Shares | None:
        """How a step divides into computing, waiting for others and communicating, where the engine exposes it.

        The rank that arrives last at a collective waits for nobody: what it spends there is communication, and what the
        others spend beyond that is waiting.
        """
        whole = sum(event.train_seconds for event in self.collectives)
        if whole <= 0:
            return None
        inside = sum(event.collective_seconds for event in self.collectives)
        communicate = len(self.collectives) * min(event.collective_seconds for event in self.collectives)
        return Shares(
            compute=1 - inside / whole, wait=(inside - communicate) / whole, communicate=communicate / whole
        )

    @property
    def pace(self) -> Pace | None:
        """How fast the run trained."""
        if self._of_script:
            return pace_of_all([*self.paces.values()])
        return self.final.pace if self.final else None

    @property
    def staleness(self) -> Staleness | None:
        if not self.updates:
            return None
        mean = sum(event.mean for event in self.updates) / len(self.updates)
        return Staleness(mean=mean, max=max(event.max for event in self.updates))

    @property
    def history(self) -> list[HistoryRow]:
        return [self.epochs[number] for number in sorted(self.epochs)]

    def seconds(self, ended: float) -> Seconds:
        """Divide the time of the run; a clock that was set back meanwhile makes no part negative."""
        test_seconds = self.final.test_seconds if self.final else 0.0
        known = bool(self.history) or not self._of_script
        train = sum((row.seconds for row in self.history), 0.0)
        evaluate = sum((row.evaluate_seconds for row in self.history), 0.0) + test_seconds
        total = max(0.0, ended - self.started)
        script_began = self._script and self._script.controller_time
        startup = (self.first_step or self._imported or script_began or ended) - self.started
        if self._of_script:  # its clocks are two: that of its process, and that by which its events arrive
            startup = min(startup, total - train - evaluate)
        return Seconds(
            startup=max(0.0, round(startup, 4)), train=round(train, 4) if known else None,
            evaluate=round(evaluate, 4) if known else None, total=round(total, 4),
        )
