"""What the commands do, as Python functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from velodrome.run import execute
from velodrome.run.store import Store
from velodrome.spec.job import Job


def train(
    job: Job,
    *,
    name: str | None = None,
    runs: str | Path = "runs",
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train one job and return its result, the object that ``velodrome train --json`` prints.

    Args:
        job: what to train and how.
        name: name of the run's folder; made from the job and the time unless said.
        runs: folder that holds the runs.
        on_event: called with every event while the job runs.

    Raises:
        BadRequest: the job cannot be done as asked; nothing was started.
        RunFailed: the run ended early; its folder says what happened.
    """
    return execute.execute(job, store=Store(Path(runs)), name=name, listener=on_event or execute.silent)


def resume(name: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """Go on with a run that did not finish, from its newest checkpoint, and return its result."""
    return execute.resume(name, store=Store(Path(runs)))
