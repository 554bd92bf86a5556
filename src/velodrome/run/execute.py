"""One job from request to result: check, allocate, plan, supervise, store. Called by the API, and so by `train`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from velodrome import files
from velodrome.clusters.admission import Admitted, admit, complete
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import AllocationEnded, Launcher
from velodrome.clusters.plan import Plan, make_plan, plan_from_json
from velodrome.clusters.registry import open_attached, open_launcher, refuse_living
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import FolderGone, RunFailed, VelodromeError
from velodrome.events.endings import BEATEN
from velodrome.events.lines import make_event
from velodrome.events.models import Event
from velodrome.job.job import Job
from velodrome.job.names import check_name, default_name
from velodrome.job.result import Result, Status
from velodrome.run import trust
from velodrome.run.outcome import Failure, make_result
from velodrome.run.store import OpenRun, RunFolder, Store
from velodrome.run.supervisor import EventKey, Listener, Stop, Supervisor, event_key, never
from velodrome.run.tensorboard import Scalars, write_session
from velodrome.tasks.registry import task_of

_LARGEST_PLAN = 64 << 20
#: How often a job is tried whose ports were taken between planning and start.
PORT_TRIES = 5


OnStart = Callable[[Plan, OpenRun], None]


class JobFailed(RunFailed):
    """A run ended early; `result` is what its folder holds."""

    def __init__(self, failure: Failure, result: Result) -> None:
        super().__init__(failure.message)
        self.failure, self.result = failure, result
        self.exit_code = 2 if failure.cause == "request" else 1


def silent(event: Event) -> None:
    pass


def execute(
    job: Job,
    *,
    store: Store,
    launcher: Launcher | None = None,
    name: str | None = None,
    listener: Listener = silent,
    progress: Progress | None = None,
    on_start: OnStart | None = None,
    stop: Stop = never,
) -> Result:
    """Train a job in a new run, by default on this machine; its result, or `JobFailed`.

    `stop` may end it; the result then has the status `interrupted`, and the reason.
    """
    if launcher is None:
        with open_launcher() as launcher:
            return execute(job, store=store, launcher=launcher, name=name, listener=listener, progress=progress,
                           on_start=on_start, stop=stop)
    if name is not None:
        check_name(name)
    admitted = admit(job, launcher)
    job = admitted.job
    catalogue.prepare(job.dataset, progress, bad_data=job.bad_data)
    trust.record([job])
    run = store.create(name, job) if name is not None else store.create_new(default_name(job), job)
    return _carry_out(run, admitted, listener, on_start, resume=False, stop=stop)


def resume(
    name: str,
    *,
    store: Store,
    launcher: Launcher | None = None,
    listener: Listener = silent,
    on_start: OnStart | None = None,
) -> Result:
    """Continue a run that did not finish, from its newest checkpoint."""
    if launcher is None:
        with open_launcher() as launcher:
            return resume(name, store=store, launcher=launcher, listener=listener, on_start=on_start)
    refuse_living(store.get(name).path)
    admitted = admit(store.get(name).job(), launcher, resumed=True)
    catalogue.prepare(admitted.job.dataset, None, bad_data=admitted.job.bad_data)
    return _carry_out(store.reopen(name), admitted, listener, on_start, resume=True)


def attach(
    name: str, *, store: Store, listener: Listener = silent, on_start: OnStart | None = None
) -> Result:
    """Supervise a run whose processes live on although their controller is gone; its result, or `JobFailed`."""
    folder = store.get(name)
    job = complete(folder.job())
    with open_attached(folder.path) as launcher:
        attached = None  # the earlier controller was gone before it started a process
        if launcher.started is not None:
            known = frozenset(map(event_key, folder.events()))
            attached = Attached(_stored_plan(folder, job, launcher.facts), launcher.started, known)
        return _carry_out(
            store.reopen(name), Admitted(job, launcher), listener, on_start, resume=True, attached=attached
        )


def _stored_plan(folder: RunFolder, job: Job, facts: Mapping[str, Any]) -> Plan:
    path = folder.path / "plan.json"
    try:
        return plan_from_json(job, files.read_json(path, _LARGEST_PLAN, inside=folder.path), facts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise VelodromeError(f"run {folder.name!r} cannot be taken over: {str(path)!r} cannot be read "
                             f"({type(error).__name__}: {error}); its processes are left as they are") from error


@dataclass(frozen=True)
class Attached:
    """What an earlier controller has begun: its plan, when, and the events that it has recorded."""

    plan: Plan
    started: float
    known: frozenset[EventKey]


def _carry_out(
    run: OpenRun, admitted: Admitted, listener: Listener, on_start: OnStart | None, *, resume: bool,
    attached: Attached | None = None, stop: Stop = never,
) -> Result:
    """Allocate, plan, start, supervise and collect; then write the result."""
    job, launcher = admitted.job, admitted.launcher
    started = run.now() if attached is None else attached.started
    scalars = Scalars(run.path / "tensorboard", task_of(job), began=run.now())
    failure: Failure | None = None
    plan = Plan(run.name, job, ())

    def take(event: Event) -> None:
        scalars.take(event)
        listener(event)

    def finish(status: Status, failure: Failure | None) -> Result:
        with deferred():
            return _finish(run, plan, launcher.name, status, started, failure)

    try:
        try:
            for attempt in range(PORT_TRIES):
                if failure is not None:
                    take(_retry(run, failure))
                if attached is None:
                    plan = _plan(run, job, launcher, take)
                    files.write_text(run.path / "plan.json", json.dumps(plan.as_json(), indent=2) + "\n")
                else:
                    plan = attached.plan
                if attempt == 0 and on_start is not None:
                    on_start(plan, run)
                known = () if attached is None else attached.known
                failure = Supervisor(run, plan, launcher, take, resume=resume, known=known, stop=stop).watch()
                if failure is None or failure.cause != "port" or attached is not None:
                    break
        except AllocationEnded as error:
            failure = Failure(str(error), cause="interrupt")
        except FolderGone:
            raise  # there is no place for a result
        except OSError as error:
            resume_it = f"free some space there, then `velodrome resume {run.name}` continues this run"
            way_out = files.if_full(error, resume_it)
            message = f"the controller cannot continue: {error.strerror or error} ({run.path}){way_out}"
            failure = Failure(message, cause="disk")
        except VelodromeError as error:
            failure = Failure(str(error), cause="start")
        except Exception as error:
            finish("failed", Failure(f"the controller failed: {type(error).__name__}: {error}", cause="controller"))
            raise
        except BaseException as error:
            with suppress(FolderGone):
                finish("interrupted", Failure(_interruption(error), cause="interrupt"))
            raise
        result = finish(_status(failure), failure)
    finally:
        scalars.close()
        run.close()
    if failure is not None and failure.cause != BEATEN:
        raise JobFailed(failure, result)
    return result


def _plan(run: OpenRun, job: Job, launcher: Launcher, listener: Listener) -> Plan:
    def notice(text: str) -> None:
        event = make_event("wait", message=text)
        run.add_event(event)
        listener(event)

    allocation = launcher.allocate(job, run.path, notice)
    return make_plan(
        run.name, job, allocation.hosts, allocation.port, placement=allocation.placement,
        addresses=allocation.addresses, capacity=allocation.capacity, facts=allocation.facts,
    )


def _status(failure: Failure | None) -> Status:
    if failure is None:
        return "finished"
    return "interrupted" if failure.cause in (BEATEN, "interrupt") else "failed"


def _interruption(error: BaseException) -> str:
    number = error.code - 128 if isinstance(error, SystemExit) and isinstance(error.code, int) else 0
    return f"ended by {signal.Signals(number).name}" if number in set(signal.Signals) else "interrupted by Ctrl-C"


def _retry(run: OpenRun, failure: Failure) -> Event:
    message = f"{failure.message}; trying again with other ports"
    event = make_event("warning", role=failure.role, rank=failure.rank, message=message)
    run.add_event(event)
    return event


def _finish(
    run: OpenRun, plan: Plan, launcher: str, status: Status, started: float, failure: Failure | None
) -> Result:
    run.release_reserve()
    if not run.is_in_place:
        raise FolderGone(f"run {run.name!r}", run.path)
    result = make_result(
        plan, str(run.path.resolve()), status, run.events(), started=started, ended=run.now(), failure=failure,
        launcher=launcher,
    )
    with suppress(OSError):  # a full disk is reported elsewhere
        write_session(run.path / "tensorboard", plan.job, result)
    run.finish(result)
    return result
