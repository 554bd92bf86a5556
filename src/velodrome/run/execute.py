"""One job from asking to result: checks, plans, supervises, stores. What the command `train` and the API both call."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.cluster import preflight
from velodrome.cluster.launcher import Launch
from velodrome.cluster.local import cold as local
from velodrome.cluster.plan import Plan, free_port, make_plan
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import RunFailed
from velodrome.run.interrupts import deferred
from velodrome.run.outcome import Failure, make_result
from velodrome.run.store import OpenRun, Store
from velodrome.run.supervisor import Listener, Supervisor
from velodrome.run.tensorboard import Scalars, write_session
from velodrome.spec.job import Job
from velodrome.spec.names import check_name, default_name
from velodrome.spec.resolve import resolve
from velodrome.tasks.registry import task_of

#: How often a port that was taken between planning and start is replaced.
PORT_TRIES = 5


class JobFailed(RunFailed):
    """A run ended early; the run's folder and `result` say the same."""

    def __init__(self, failure: Failure, result: dict[str, Any]) -> None:
        super().__init__(failure.message)
        self.failure, self.result = failure, result
        self.exit_code = 2 if failure.cause == "request" else 1


def silent(event: dict[str, Any]) -> None:
    pass


def execute(
    job: Job,
    *,
    store: Store,
    name: str | None = None,
    listener: Listener = silent,
    progress: Progress | None = None,
    on_start: Callable[[Plan, OpenRun], None] | None = None,
    port: Callable[[], int] = free_port,
    launch: Launch = local.start,
) -> dict[str, Any]:
    """Train a job in a new run; its result, or `JobFailed`."""
    job = resolve(job)
    if name is not None:
        check_name(name)
    preflight.check(job)
    catalogue.prepare(job.dataset, progress, bad_data=job.bad_data)
    run = store.create(name, job) if name is not None else store.create_new(default_name(job), job)
    return _carry_out(run, job, listener, on_start, port, launch, resume=False)


def resume(
    name: str,
    *,
    store: Store,
    listener: Listener = silent,
    on_start: Callable[[Plan, OpenRun], None] | None = None,
    port: Callable[[], int] = free_port,
) -> dict[str, Any]:
    """Go on with a run that did not finish, from its newest checkpoint."""
    job = resolve(store.get(name).job())
    preflight.check(job)
    catalogue.prepare(job.dataset, None, bad_data=job.bad_data)
    return _carry_out(store.reopen(name), job, listener, on_start, port, local.start, resume=True)


def _carry_out(
    run: OpenRun,
    job: Job,
    listener: Listener,
    on_start: Callable[[Plan, OpenRun], None] | None,
    port: Callable[[], int],
    launch: Launch,
    *,
    resume: bool,
) -> dict[str, Any]:
    started = time.time()
    scalars = Scalars(run.path / "tensorboard", task_of(job))
    failure: Failure | None = None

    def take(event: dict[str, Any]) -> None:
        scalars.take(event)
        listener(event)

    try:
        plan = make_plan(run.name, job, port=port)
        try:
            if on_start is not None:
                on_start(plan, run)
            for _ in range(PORT_TRIES):
                files.write_text(run.path / "plan.json", json.dumps(plan.as_json(), indent=2) + "\n")
                failure = Supervisor(run, plan, take, resume=resume, launch=launch).watch()
                if failure is None or failure.cause != "port":
                    break
                take(_retry(run, failure))
                plan = make_plan(run.name, job, port=port)
        except OSError as error:
            failure = Failure(f"the controller cannot go on: {error.strerror or error} ({run.path})", cause="disk")
        except Exception as error:
            fault = Failure(f"the controller failed: {type(error).__name__}: {error}", cause="controller")
            _finish(run, plan, "failed", started, fault)
            raise
        except BaseException as error:
            with deferred():
                _finish(run, plan, "interrupted", started, Failure(_interruption(error), cause="interrupt"))
            raise
        with deferred():
            result = _finish(run, plan, "failed" if failure else "finished", started, failure)
    finally:
        scalars.close()
        run.close()
    if failure is not None:
        raise JobFailed(failure, result)
    return result


def _interruption(error: BaseException) -> str:
    number = error.code - 128 if isinstance(error, SystemExit) and isinstance(error.code, int) else 0
    return f"ended by {signal.Signals(number).name}" if number in set(signal.Signals) else "interrupted by Ctrl-C"


def _retry(run: OpenRun, failure: Failure) -> dict[str, Any]:
    event = {
        "time": time.time(), "role": failure.role, "rank": failure.rank, "kind": "warning",
        "message": f"{failure.message}; trying again with other ports",
    }
    run.add_event(event)
    return event


def _finish(run: OpenRun, plan: Plan, status: str, started: float, failure: Failure | None) -> dict[str, Any]:
    run.release_reserve()
    result = make_result(
        plan, str(run.path.resolve()), status, run.events(), started=started, ended=time.time(), failure=failure
    )
    with suppress(OSError):  # a full disk is told of elsewhere
        write_session(run.path / "tensorboard", plan.job, result)
    run.finish(result)
    return result


def default_runs() -> Path:
    """Where runs go unless the user says."""
    return Path("runs")
