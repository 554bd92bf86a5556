"""A training process that does not train a job to its end: it does something instead, or trains for a second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from velodrome.catalog.engines.torch import MESH
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.plan import Plan, make_plan
from velodrome.clusters.preflight import admit
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import RunFailed, VelodromeError
from velodrome.events.models import InspectionEvent, ResultEvent
from velodrome.job.job import Job
from velodrome.job.resolve import alone
from velodrome.judge.estimate import Timing
from velodrome.run.state import Failure, RunState
from velodrome.run.store import OpenRun, Store
from velodrome.run.supervisor import Supervisor
from velodrome.variables import CHECK, INSTEAD


class DryRunFailed(RunFailed):
    """The process ended early."""

    def __init__(self, failure: Failure) -> None:
        # There is one process: where it ran and which rank it had says nothing.
        super().__init__(failure.message.partition(f" {failure.rank} on {failure.host}: ")[2] or failure.message)
        self.failure = failure
        self.exit_code = 2 if failure.cause == "request" else 1


def dry_run(job: Job, instead: str, launcher: Launcher, progress: Progress | None = None) -> RunState:
    """Let one process do this (`variables.INSTEAD`) with a job that `alone` returned; what its events add up to, or
    `DryRunFailed`."""
    job = admit(job, launcher).job
    catalogue.prepare(job.dataset, progress, bad_data=job.bad_data)
    state = RunState()
    with planned(job, launcher, {INSTEAD: instead}) as (run, plan):
        failure = Supervisor(run, plan, launcher, state=state).watch()
    if failure is not None:
        raise DryRunFailed(failure)
    return state


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
    state = dry_run(tried, f"{CHECK}{workers}{f':{mesh}' if mesh else ''}", launcher, progress)
    about, final = state.inspection, state.final
    assert about is not None
    assert final is not None
    timing = Timing(state.startup or 0.0, about.batch / max(about.seconds, 1e-9))
    return Inspected(tried, about, final, state.warnings(), timing)


@contextmanager
def planned(job: Job, launcher: Launcher, variables: Mapping[str, str]) -> Iterator[tuple[OpenRun, Plan]]:
    """A run in a folder that is removed afterwards, and its plan, whose processes have these variables, too."""
    with tempfile.TemporaryDirectory(prefix="velodrome-") as folder:
        run = Store(Path(folder)).create("dry-run", job)
        try:
            allocation = launcher.allocate(job)
            plan = make_plan(run.name, job, allocation.hosts, allocation.port)
            processes = (replace(process, environment={**process.environment, **variables})
                         for process in plan.processes)
            yield run, replace(plan, processes=tuple(processes))
        finally:
            run.close()


#: The cause of the end of a run that has trained for long enough, or takes too long to begin.
ENOUGH = "enough"


def measure(job: Job, launcher: Launcher, *, seconds: float = 1.0, limit: float = 60.0) -> Timing | None:
    """Train a job for about a second, and end it; None if it cannot run, or not within the limit.

    `DryRunFailed` if the job asks for what cannot be. Why else it cannot run is the business of whoever really runs
    it.
    """
    state, deadline = RunState(time.time()), time.monotonic() + limit
    failure = None

    def stop(state: RunState) -> Failure | None:
        over = state.trained >= seconds or time.monotonic() > deadline
        return Failure("it has trained for long enough", cause=ENOUGH) if over else None

    with suppress(VelodromeError):
        with planned(admit(job, launcher).job, launcher, {}) as (run, plan):
            failure = Supervisor(run, plan, launcher, state=state, stop=stop).watch()
        ended, first, last = failure is None or failure.cause == ENOUGH, state.first_progress, state.last_epoch
        if ended and state.startup is not None and first is not None and state.examples and state.trained > 0:
            rate = state.examples / state.trained
            return Timing(state.startup, rate, max(0.0, first.seconds - first.examples / rate),
                          last and last.event.evaluate_seconds, state.trained)
    if failure is not None and failure.cause == "request":
        raise DryRunFailed(failure)
    return None
