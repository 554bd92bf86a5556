"""The state of a run: the only place where its events are added up, one by one, while it runs and when it is read from
its folder. The result, the terminal, pages, figures and the supervisor read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from velodrome.catalog.world import Member
from velodrome.clusters.plan import Plan, Process
from velodrome.events.models import (
    CheckpointEvent,
    DataEvent,
    EpochEvent,
    ErrorEvent,
    Event,
    FaultEvent,
    HelloEvent,
    InspectionEvent,
    LostEvent,
    Pace,
    PaceEvent,
    PhaseEvent,
    ProgressEvent,
    ResourcesEvent,
    ResultEvent,
    SharesEvent,
    StalenessEvent,
    TrafficEvent,
    WarningEvent,
)
from velodrome.events.result import FaultRecord, Seconds, Shares, Staleness
from velodrome.job.job import Job
from velodrome.run.processes import Failure as Failure
from velodrome.run.processes import ProcessState
from velodrome.run.samples import CpuSeries, HostSummary, Key, Series, pace_of_all, shares_of

#: Rows that are kept of everything over time while a run is watched: what a plot can show.
WATCHED_ROWS = 150
Incident = WarningEvent | LostEvent | ErrorEvent | CheckpointEvent


class Epoch(NamedTuple):
    """An epoch, and the seconds and examples of training up to its end."""

    event: EpochEvent
    seconds: float
    examples: int


class Rate(NamedTuple):
    """Examples per second of training at a moment."""

    moment: float
    rate: float


@dataclass
class Fault:
    """Something broken on purpose; without an end if it lasted until the end of the run."""

    event: FaultEvent
    start: float
    end: float | None = None


def _is_first(event: Event) -> bool:
    """Whether an event is of the first rank of those that train."""
    return event.rank == 0 and event.role != "server"


@dataclass
class RunState:
    """What the events of a run add up to: `add` takes each, once. Moments are by the controller's clock."""

    #: When this attempt at the job began; by default with the first event.
    started: float | None = None
    #: Rows that are kept of everything over time; None for all.
    limit: int | None = None
    #: Whether the job runs a script of the user's own.
    script: bool = False
    processes: dict[Key, ProcessState] = field(default_factory=dict)
    #: The moment of the first event, and of the last one.
    began: float | None = None
    latest: float = 0.0

    #: Where training is: the phase that began last, the last report of the first rank, the epoch and the step in it.
    phase: str = ""
    progress: ProgressEvent | None = None
    #: Its first report, and the examples and seconds of training after it: what comes first is slower.
    first_progress: ProgressEvent | None = None
    examples: int = 0
    trained: float = 0.0
    epoch: int = 0
    step: int = 0
    #: Steps of a whole epoch: the most that one had, since the last of a job with `steps` may be shorter.
    steps_per_epoch: int = 0
    epochs: dict[int, Epoch] = field(default_factory=dict)
    final: ResultEvent | None = None
    inspection: InspectionEvent | None = None
    data: DataEvent | None = None
    #: The first error since a process was started that is no consequence of another one.
    error: ErrorEvent | None = None
    incidents: list[Incident] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    #: How fast each process of a script trained.
    paces: dict[Key, Pace] = field(default_factory=dict)
    collectives: list[SharesEvent] = field(default_factory=list)
    staleness: Staleness | None = None
    hosts: dict[str, HostSummary] = field(default_factory=dict)
    #: What the processes of the first rank have installed: they may run in another environment than the controller.
    versions: dict[str, str] = field(default_factory=dict)
    #: When the first training step began.
    first_step: float | None = None
    #: When the chief of a script of the user's own began, and when its imports were over.
    _script_began: PhaseEvent | None = None
    _imported: float | None = None

    def __post_init__(self) -> None:
        self.rates: Series[Rate] = Series(self.limit)
        self.updates: Series[StalenessEvent] = Series(self.limit)
        self._rate_from: ProgressEvent | None = None
        self._staleness_sum, self._staleness_count = 0.0, 0

    @classmethod
    def of(cls, plan: Plan, started: float, events: Iterable[Event] = ()) -> RunState:
        """The state of a planned run after these events."""
        state = cls(started, WATCHED_ROWS, plan.job.script is not None)
        for event in events:
            state.add(event)
        state.processes_of(plan)
        return state

    def processes_of(self, plan: Plan) -> list[ProcessState]:
        """The states of the processes of a plan, in their order."""
        return [self._process(process.role, process.rank, process) for process in plan.processes]

    def _process(self, role: str, rank: int, process: Process | None = None) -> ProcessState:
        if (state := self.processes.get((role, rank))) is None:
            process = process or Process(Member(role, rank, "", 0), 0, 0, {})
            state = self.processes[role, rank] = ProcessState(process, limit=self.limit)
        elif process is not None:
            state.process = process
        return state

    def add(self, event: Event, gap: float | None = None, *, process: ProcessState | None = None) -> None:
        """Take the next event, of the process that it names, by default; `gap` are the seconds since the heartbeat
        before, if that one was left out."""
        now = event.time if event.received is None else event.received
        if self.began is None:
            self.began = self.latest = now
            self.started = now if self.started is None else self.started
        elif now > self.latest:
            self.latest = now
        if process is None and event.role is not None and event.rank is not None:
            process = self.processes.get((event.role, event.rank)) or self._process(event.role, event.rank)
        if process is not None:
            process.add(event, now, gap)
        match event:
            case ResourcesEvent():
                pass
            case ProgressEvent():
                if _is_first(event):
                    self._add_progress(event, now)
            case PhaseEvent():
                self._add_phase(event, now)
            case EpochEvent():
                self._add_epoch(event)
            case StalenessEvent():
                self._add_staleness(event)
            case HelloEvent():
                self._add_process(event, process, now)
            case WarningEvent() | LostEvent() | CheckpointEvent() | ErrorEvent():
                self.incidents.append(event)
                if isinstance(event, ErrorEvent) and event.cause != "peer":
                    self.error = self.error or event
            case SharesEvent():
                self.collectives.append(event)
            case DataEvent():
                self.data = event
            case ResultEvent():
                self.final = event
            case InspectionEvent():
                self.inspection = event
            case FaultEvent():
                if event.state == "begin":
                    self.faults[event.fault] = Fault(event, now)
                elif event.fault in self.faults:
                    self.faults[event.fault].end = now
            case PaceEvent() if process is not None and not self._is_earlier(now):
                self.paces[process.key] = event.pace
            case TrafficEvent() if event.host in self.hosts and not self._is_earlier(now):
                self.hosts[event.host].network = event.network

    def _is_earlier(self, now: float) -> bool:
        """Whether an event is of an earlier attempt: a run that was resumed has those, too."""
        return self.started is not None and now < self.started

    def _add_process(self, event: HelloEvent, process: ProcessState | None, now: float) -> None:
        self.error = None
        if process is None or self._is_earlier(now):
            return
        host = self.hosts.setdefault(event.host, HostSummary(event))
        # Also of a process that is started again.
        process.cpu = host.processes[process.key] = CpuSeries()
        if event.rank == 0:
            self.versions |= {"python": event.python, **event.versions}

    def _add_progress(self, event: ProgressEvent, now: float) -> None:
        earlier = self.progress if self.progress is not None and self.progress.epoch == event.epoch else None
        if self.first_progress is None:
            self.first_progress = event
        else:
            self.examples += event.examples - (earlier.examples if earlier else 0)
            self.trained += event.seconds - (earlier.seconds if earlier else 0.0)
        self.progress, self.epoch, self.step = event, event.epoch, event.step
        self.steps_per_epoch = max(self.steps_per_epoch, event.steps)
        before = self._rate_from
        if before is None or before.epoch != event.epoch:
            rate = event.examples / event.seconds if event.seconds > 0 else 0.0
        elif event.seconds - before.seconds < 0.2:
            return
        else:
            rate = (event.examples - before.examples) / (event.seconds - before.seconds)
        self._rate_from = event
        if rate > 0:
            self.rates.add(Rate(now, rate))

    def _add_phase(self, event: PhaseEvent, now: float) -> None:
        if event.state == "begin":
            self.phase = event.phase
        if self._is_earlier(now):
            return
        match event:
            case PhaseEvent(phase="script", state="begin") if _is_first(event):
                self._script_began = event
                self.epochs.clear()  # a script that is resumed begins at the beginning
            case PhaseEvent(phase="import", state="end") if self.script:
                self._imported = self._imported or self._when(event)
            case PhaseEvent(phase="train") if self.first_step is None:
                self.first_step = self._when(event) if self.script else now

    def _add_epoch(self, event: EpochEvent) -> None:
        while self.epochs and next(reversed(self.epochs)) >= event.epoch:  # a run that was resumed repeats them
            self.epochs.popitem()
        last = self.last_epoch
        seconds, examples = (last.seconds, last.examples) if last else (0.0, 0)
        self.epochs[event.epoch] = Epoch(event, seconds + event.seconds, examples + event.train.total)
        self.epoch, self.step = event.epoch, 0

    def _add_staleness(self, event: StalenessEvent) -> None:
        self.updates.add(event)
        self._staleness_sum += event.mean
        self._staleness_count += 1
        before = self.staleness
        leads = [each.lead for each in (before, event) if each is not None and each.lead is not None]
        ages = Counter(before.ages if before else {}) + Counter(event.ages)
        known: dict[str, Any] = {"ages": dict(ages), "lead": max(leads)} if leads else {}
        self.staleness = Staleness(
            mean=self._staleness_sum / self._staleness_count, max=max(event.max, before.max if before else 0.0),
            **known,
        )

    @property
    def last_epoch(self) -> Epoch | None:
        return self.epochs[next(reversed(self.epochs))] if self.epochs else None

    @property
    def steps(self) -> int:
        """Steps so far."""
        if (last := self.last_epoch) is None:
            return self.step
        return last.event.steps + (self.step if self.epoch > last.event.epoch else 0)

    @property
    def startup(self) -> float | None:
        """Seconds from the start to the first training step; None before it."""
        return None if self.first_step is None else max(0.0, self.first_step - (self.started or 0.0))

    def done(self, job: Job, epochs: int | None = None) -> float:
        """How much of the training of a job is over, from 0 to 1; `epochs` are those of its result, if it has one."""
        if job.script is not None:
            return 0.0  # a script does not tell how long it trains
        per_epoch, trained = self.steps_per_epoch, float(len(self.epochs) if epochs is None else epochs)
        if epochs is None and per_epoch and self.epoch > trained:
            trained = self.epoch - 1 + self.step / per_epoch
        total = min(job.epochs, job.steps / per_epoch) if job.steps and per_epoch else job.epochs
        return min(1.0, trained / total)

    def _when(self, event: PhaseEvent) -> float | None:
        """When the chief of a script got there, by the controller's clock; None for other ranks.

        Epochs and evaluations are those of the chief, so start-up is, too. A script may report an epoch when it is
        over: what counts is the time that the event states, not when it came.
        """
        if (began := self._script_began) is None or not _is_first(event):
            return None
        return began.controller_time + (event.time - began.time)

    @property
    def shares(self) -> Shares | None:
        """How a step divides into computing, waiting for others and communicating, where the engine exposes it."""
        return shares_of(self.collectives)

    @property
    def pace(self) -> Pace | None:
        """How fast the run trained."""
        if self.script:
            return pace_of_all([*self.paces.values()])
        return self.final.pace if self.final else None

    def warnings(self) -> list[str]:
        """What the run warned of, each sentence once."""
        return list(dict.fromkeys(event.message for event in self.incidents if isinstance(event, WarningEvent)))

    def fault_records(self) -> list[FaultRecord]:
        """What was broken on purpose in this attempt, in seconds since it began."""
        started = self.started or 0.0
        records = []
        for fault in self.faults.values():
            if fault.start >= started:
                about = fault.event.model_dump(include={"fault", "action", "target", "host", "factor"},
                                               exclude_none=True)
                end = None if fault.end is None else round(fault.end - started, 4)
                records.append(FaultRecord.model_validate({**about, "start": round(fault.start - started, 4),
                                                           "end": end}))
        return records

    def seconds(self, ended: float) -> Seconds:
        """Divide the time of the run; a clock that was set back meanwhile makes no part negative."""
        started, epochs = self.started or 0.0, self.epochs.values()
        test_seconds = self.final.test_seconds if self.final else 0.0
        known = bool(epochs) or not self.script
        train = sum((epoch.event.seconds for epoch in epochs), 0.0)
        evaluate = sum((epoch.event.evaluate_seconds for epoch in epochs), 0.0) + test_seconds
        total = max(0.0, ended - started)
        script_began = self._script_began and self._script_began.controller_time
        startup = (self.first_step or self._imported or script_began or ended) - started
        if self.script:  # its clocks are two: that of its process, and that by which its events arrive
            startup = min(startup, total - train - evaluate)
        return Seconds(
            startup=max(0.0, round(startup, 4)), train=round(train, 4) if known else None,
            evaluate=round(evaluate, 4) if known else None, total=round(total, 4),
        )
