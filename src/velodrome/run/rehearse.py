"""One training process that does something else than training, supervised as any run is, and stored nowhere."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from velodrome.cluster import preflight
from velodrome.cluster.launcher import Launcher
from velodrome.cluster.plan import make_plan
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import RunFailed
from velodrome.events.models import Event
from velodrome.offers.registry import SINGLE, engine_alone
from velodrome.run.outcome import Failure
from velodrome.run.store import Store
from velodrome.run.supervisor import Supervisor
from velodrome.spec.job import Job
from velodrome.spec.resolve import resolve, strategy_fields
from velodrome.variables import INSTEAD


class RehearsalFailed(RunFailed):
    """The process ended early."""

    def __init__(self, failure: Failure) -> None:
        # There is one process: where it ran and which rank it had says nothing.
        super().__init__(failure.message.partition(f" {failure.rank} on {failure.host}: ")[2] or failure.message)
        self.failure = failure
        self.exit_code = 2 if failure.cause == "request" else 1


def alone(job: Job) -> Job:
    """The same model, data and batch in one process: what trains, without anything about distribution."""
    return resolve(job.model_copy(update={
        "engine": engine_alone(job.engine) or job.engine, "strategy": SINGLE, "consistency": None, "workers": 1,
        "servers": 0, "implementation": "velodrome", "keep_going": False, "batch_scope": None, "sharding": "auto",
        "target": None, "faults": [],
        **dict.fromkeys(strategy_fields()),
    }))


def rehearse(job: Job, instead: str, launcher: Launcher, progress: Progress | None = None) -> list[Event]:
    """Let one process do this (`variables.INSTEAD`) with a job that `alone` returned; its events, or
    `RehearsalFailed`."""
    preflight.check_job(job)
    launcher.check(job)
    catalogue.prepare(job.dataset, progress, bad_data=job.bad_data)
    with tempfile.TemporaryDirectory(prefix="velodrome-") as folder:
        run = Store(Path(folder)).create("rehearsal", job)
        try:
            allocation = launcher.allocate(job)
            plan = make_plan(run.name, job, allocation.hosts, allocation.port)
            processes = tuple(replace(one, environment={**one.environment, INSTEAD: instead}) for one in plan.processes)
            failure = Supervisor(run, replace(plan, processes=processes), launcher, lambda event: None).watch()
            if failure is not None:
                raise RehearsalFailed(failure)
            return list(run.events())
        finally:
            run.close()
