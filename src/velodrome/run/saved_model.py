"""The saved model of a finished run: which job loads it, and whether it does what the run reported."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.catalog.registry import strategy_of
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.preflight import complete
from velodrome.errors import BadRequest
from velodrome.events.models import ResultEvent
from velodrome.job.job import Job, default_of
from velodrome.job.resolve import alone, batch_of_step, replicas_of
from velodrome.job.result import Result
from velodrome.models.model_files import DESCRIPTION, read_description
from velodrome.run import trust
from velodrome.run.dry_run import dry_run
from velodrome.run.store import RunFolder
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of_result

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
    final = dry_run(job, str((path / "model").resolve()), launcher).final
    assert final is not None
    reported = result.test.as_json() if result.test is not None else {}
    return compared(folder, task_of_result(result), reported, final, TOLERANCE.get(job.dtype, DEFAULT_TOLERANCE))


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
    verified = Verified(
        folder.name, str(folder.path), {name: reported.get(name) for name in names},
        {name: measured.get(name) for name in names}, tolerance,
    )
    if reported.get("fingerprint") and final.test_fingerprint and reported["fingerprint"] != final.test_fingerprint:
        verified.problems.append("the test set is not the one that the run was evaluated on")
    for name in names:
        before, now = verified.reported[name], verified.measured[name]
        if not _equal(before, now, tolerance):
            verified.problems.append(f"{name} is {now}, and the run reported {before}")
    return verified


def _equal(before: float | None, now: float | None, tolerance: float) -> bool:
    """Whole numbers are counts, and must be equal."""
    if before is None or now is None or (isinstance(before, int) and isinstance(now, int)):
        return before == now
    return math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
