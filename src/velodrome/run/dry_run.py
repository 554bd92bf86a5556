"""A training process that does not train: a second of a job, or the evaluation of a saved model."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.catalog.registry import strategy_of
from velodrome.clusters.admission import admit, complete
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.plan import Plan, make_plan
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import BadRequest, RunFailed, VelodromeError
from velodrome.events.models import EpochEvent, Event, PhaseEvent, ProgressEvent, ResultEvent
from velodrome.job.job import Job, default_of
from velodrome.job.resolve import alone, batch_of_step, replicas_of
from velodrome.job.result import Result
from velodrome.judge.estimate import Timing
from velodrome.models.recipe import DESCRIPTION, read_description
from velodrome.run import trust
from velodrome.run.outcome import Failure
from velodrome.run.store import OpenRun, RunFolder, Store
from velodrome.run.supervisor import Supervisor
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of_result
from velodrome.variables import INSTEAD


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
        failure = Supervisor(run, replace(plan, processes=processes), launcher, lambda event: None).watch()
        if failure is not None:
            raise RehearsalFailed(failure)
        return list(run.events())


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

    def listen(self, event: Event) -> None:
        if isinstance(event, PhaseEvent) and event.phase == "train" and self.startup is None:
            self.startup = max(0.0, event.time - self.began)
        elif isinstance(event, EpochEvent):
            self.evaluate = event.evaluate_seconds
        elif isinstance(event, ProgressEvent) and event.rank == 0:
            self._count(event)

    def stop(self) -> Failure | None:
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


#: By how much what is not a count may differ, relative to its value: another number of workers evaluates in other
#: batches, and sums in another order.
TOLERANCE = {"float64": 1e-8}
DEFAULT_TOLERANCE = 1e-4


@dataclass
class Verified:
    """What a run reported, what its saved model does now, and in what they differ."""

    run: str
    path: str
    reported: dict[str, float | None]
    measured: dict[str, float | None]
    tolerance: float
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": not self.problems}


def verify_run(path: Path, launcher: Launcher, trusted: Collection[str] = ()) -> Verified:
    """Load the model of a finished run in a process of its own and evaluate it on the run's test set."""
    folder = RunFolder(path)
    result, job = finished_result(folder, "verify"), job_of_saved_model(folder, trusted)
    model = path / "model"
    events = rehearse(job, str(model.resolve()), launcher)
    final = next(event for event in events if isinstance(event, ResultEvent))
    return compared(folder, task_of_result(result), result["test"], final, TOLERANCE.get(job.dtype, DEFAULT_TOLERANCE))


def finished_result(folder: RunFolder, purpose: str) -> Result:
    """The result of a run that has a model; `purpose` is what is done with it."""
    result, problem = folder.read()
    if problem is not None:
        raise BadRequest(f"run {folder.name!r} cannot be read: {problem}")
    if result is None or result.status != "finished":
        raise BadRequest(f"run {folder.name!r} is {folder.status()}: only a finished run has a model to {purpose}")
    if result.test is None:
        raise BadRequest(f"run {folder.name!r} has no test result: there is nothing to {purpose}")
    return result


def job_of_saved_model(folder: RunFolder, trusted: Collection[str] = ()) -> Job:
    """A job of one process that loads the run's model and data; `UntrustedCode` if it needs code that is not trusted,
    `trusted` being what the user names."""
    model = folder.path / "model"
    try:
        files.check_regular(model / DESCRIPTION, inside=folder.path)
    except FileNotFoundError:
        raise BadRequest(f"run {folder.name!r} has no saved model: {model / DESCRIPTION} is missing") from None
    except OSError as error:
        raise BadRequest(f"run {folder.name!r}: {model / DESCRIPTION} cannot be read: {error.strerror}") from None
    stored = complete(folder.job())
    try:
        read_description(model, stored.model)
    except (OSError, ValueError) as error:
        raise BadRequest(f"run {folder.name!r} has no saved model that can be read: {error}") from None
    trust.admit_stored(stored, f"run {folder.name!r}", folder.path, trusted)
    strategy = strategy_of(stored)
    share = batch_of_step(stored, strategy) // (replicas_of(stored) if strategy.synchronous else 1) // stored.accumulate
    # A model may take no other batch than the one that each process had. What only training uses is left out.
    plain = {name: default_of(name) for name in ("accumulate", "weights", "ema", "schedule", "warmup")}
    return alone(stored.model_copy(update={**plain, "batch_size": max(1, share), "steps": 1}))


def compared(
    folder: RunFolder, task: Task, reported: Mapping[str, Any], final: ResultEvent, tolerance: float
) -> Verified:
    """Compare what a run reported on its test set with what its saved model does."""
    measured = task.summary(final.test.as_json()) or {}
    names = [name for name, value in reported.items() if value is None or isinstance(value, int | float)]
    found = Verified(
        folder.name, str(folder.path), {name: reported.get(name) for name in names},
        {name: measured.get(name) for name in names}, tolerance,
    )
    if reported.get("fingerprint") and final.test_fingerprint and reported["fingerprint"] != final.test_fingerprint:
        found.problems.append("the test set is not the one that the run was evaluated on")
    for name in names:
        before, now = found.reported[name], found.measured[name]
        if not _equal(before, now, tolerance):
            found.problems.append(f"{name} is {now}, and the run reported {before}")
    return found


def _equal(before: float | None, now: float | None, tolerance: float) -> bool:
    """Whole numbers are counts, and must be equal."""
    if before is None or now is None or (isinstance(before, int) and isinstance(now, int)):
        return before == now
    return math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
