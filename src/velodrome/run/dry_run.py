"""A training process that does not train a job to its end: it does something instead, or trains for a second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from velodrome.catalog.engines.torch import MESH
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.plan import Plan, make_plan
from velodrome.clusters.preflight import admit
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import RunFailed, VelodromeError
from velodrome.events.models import (
    EpochEvent,
    Event,
    InspectionEvent,
    PhaseEvent,
    ProgressEvent,
    ResultEvent,
    WarningEvent,
)
from velodrome.job.job import Job
from velodrome.job.resolve import alone
from velodrome.judge.estimate import Timing
from velodrome.run.state import Failure, RunState
from velodrome.run.store import OpenRun, Store
from velodrome.run.supervisor import Supervisor
from velodrome.variables import CHECK, INSTEAD


class RehearsalFailed(RunFailed):
    """The process ended early."""

    def __init__(self, failure: Failure) -> None:
        # There is one process: where it ran and which rank it had says nothing.
        super().__init__(failure.message.partition(f" {failure.rank} on {failure.host}: ")[2] or failure.message)
        self.failure = failure
        self.exit_code = 2 if failure.cause == "request" else 1


def rehearse(job: Job, instead: str, launcher: Launcher, progress: Progress | None = None) -> list[Event]:
    """Let one process do this (`variables.INSTEAD`) with a job that `alone` returned; its events, or
    `RehearsalFailed`."""
    job = admit(job, launcher).job
    catalogue.prepare(job.dataset, progress, bad_data=job.bad_data)
    with _planned(job, launcher) as (run, plan):
        processes = tuple(replace(one, environment={**one.environment, INSTEAD: instead}) for one in plan.processes)
        failure = Supervisor(run, replace(plan, processes=processes), launcher).watch()
        if failure is not None:
            raise RehearsalFailed(failure)
        return list(run.events())


@dataclass(frozen=True)
class Inspected:
    """What one process found out about a job in a second of training."""

    job: Job
    #: Its layers, its memory and the time of a step.
    about: InspectionEvent
    final: ResultEvent
    #: Warnings of the process, each once.
    warnings: Sequence[str]
    timing: Timing


def inspect(job: Job, workers: int, launcher: Launcher, progress: Progress | None = None) -> Inspected:
    """Try a job alone for a second; strategies that divide the model are described for so many workers."""
    tried, mesh = alone(job), MESH.of(job)
    events = rehearse(tried, f"{CHECK}{workers}{f':{mesh}' if mesh else ''}", launcher, progress)
    about = next(event for event in events if isinstance(event, InspectionEvent))
    final = next(event for event in events if isinstance(event, ResultEvent))
    began = next((event.time for event in events if isinstance(event, PhaseEvent) and event.phase == "train"), 0.0)
    startup = max(0.0, began - min(event.time for event in events))
    warnings = dict.fromkeys(event.message for event in events if isinstance(event, WarningEvent))
    return Inspected(tried, about, final, [*warnings], Timing(startup, about.batch / max(about.seconds, 1e-9)))


@contextmanager
def _planned(job: Job, launcher: Launcher) -> Iterator[tuple[OpenRun, Plan]]:
    """A run in a folder that is removed afterwards, and its plan."""
    with tempfile.TemporaryDirectory(prefix="velodrome-") as folder:
        run = Store(Path(folder)).create("rehearsal", job)
        try:
            allocation = launcher.allocate(job)
            yield run, make_plan(run.name, job, allocation.hosts, allocation.port)
        finally:
            run.close()


#: The cause of the end of a run that has trained for long enough, or takes too long to begin.
ENOUGH = "enough"


@dataclass
class _Clock:
    """Listens to a run until it has trained for some time, and knows how fast it was."""

    seconds: float
    deadline: float
    began: float = field(default_factory=time.time)
    startup: float | None = None
    #: Examples and seconds of all calls but the first, which is slower.
    examples: int = 0
    trained: float = 0.0
    first: tuple[int, float] | None = None
    evaluate: float | None = None
    _epoch: int = 0
    _before: tuple[int, float] = (0, 0.0)

    def listen(self, state: RunState, event: Event) -> None:
        if isinstance(event, PhaseEvent) and event.phase == "train" and self.startup is None:
            self.startup = max(0.0, event.time - self.began)
        elif isinstance(event, EpochEvent):
            self.evaluate = event.evaluate_seconds
        elif isinstance(event, ProgressEvent) and event.rank == 0:
            self._count(event)

    def stop(self, state: RunState) -> Failure | None:
        if self.trained >= self.seconds or time.monotonic() > self.deadline:
            return Failure("it has trained for long enough", cause=ENOUGH)
        return None

    def _count(self, event: ProgressEvent) -> None:
        if event.epoch != self._epoch:
            self._epoch, self._before = event.epoch, (0, 0.0)
        if self.first is None:
            self.first = event.examples, event.seconds
        else:
            self.examples += event.examples - self._before[0]
            self.trained += event.seconds - self._before[1]
        self._before = event.examples, event.seconds


def measure(job: Job, launcher: Launcher, *, seconds: float = 1.0, limit: float = 60.0) -> Timing | None:
    """Train a job for about a second, and end it; None if it cannot run, or not within the limit.

    `RehearsalFailed` if the job asks for what cannot be. Why else it cannot run is the business of whoever really runs
    it.
    """
    clock = _Clock(seconds, time.monotonic() + limit)
    failure = None
    with suppress(VelodromeError):
        with _planned(admit(job, launcher).job, launcher) as (run, plan):
            failure = Supervisor(run, plan, launcher, clock.listen, stop=clock.stop).watch()
        ended = failure is None or failure.cause == ENOUGH
        if ended and clock.startup is not None and clock.examples and clock.trained > 0:
            rate, (examples, took) = clock.examples / clock.trained, clock.first or (0, 0.0)
            return Timing(clock.startup, rate, max(0.0, took - examples / rate), clock.evaluate, clock.trained)
    if failure is not None and failure.cause == "request":
        raise RehearsalFailed(failure)
    return None
