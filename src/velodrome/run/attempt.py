"""One attempt at a job in an open run: allocate, plan, start, supervise and collect; then write the result."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from velodrome import files
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import AllocationEnded, Launcher
from velodrome.clusters.plan import Plan, make_plan
from velodrome.clusters.preflight import Admitted
from velodrome.errors import BadRequest, FolderGone, RunFailed, VelodromeError, if_full
from velodrome.events import make_event
from velodrome.events.models import Event
from velodrome.job.job import Job
from velodrome.job.result import BEATEN, Ended, Result
from velodrome.run.outcome import make_result
from velodrome.run.state import WATCHED_ROWS, Failure, RunState
from velodrome.run.store import OpenRun, Store
from velodrome.run.supervisor import EventKey, Listener, Stop, Supervisor, never
from velodrome.run.tensorboard import Scalars, write_session

#: How often a job is tried whose ports were taken between planning and start.
PORT_TRIES = 5

OnStart = Callable[[Plan, OpenRun], None]


class JobFailed(RunFailed):
    """A run ended early; `result` is what its folder holds."""

    def __init__(self, failure: Failure, result: Result) -> None:
        super().__init__(failure.message)
        self.failure, self.result = failure, result
        self.exit_code = 2 if failure.cause == "request" else 1


@dataclass(frozen=True)
class Attached:
    """What an earlier controller has begun: its plan, when, and the events that it has recorded."""

    plan: Plan
    started: float
    known: frozenset[EventKey]


class Attempt:
    """One attempt at a job; `attached` if its processes run already."""

    def __init__(
        self, run: OpenRun, admitted: Admitted, listener: Listener, on_start: OnStart | None = None, *, resume: bool,
        attached: Attached | None = None, stop: Stop = never,
    ) -> None:
        self._run, self._admitted, self._listener, self._on_start = run, admitted, listener, on_start
        self._resume, self._attached, self._stop = resume, attached, stop
        started = run.now() if attached is None else attached.started
        self._state = RunState(started, WATCHED_ROWS, admitted.job.script is not None)
        for event in run.events() if resume else ():
            self._state.add(event)
        self._scalars = Scalars(run.path / "tensorboard", admitted.job, began=run.now())
        self._plan = Plan(run.name, admitted.job, ())

    def carry_out(self) -> Result:
        """The result of the run, or `JobFailed`."""
        try:
            failure = self._ended_by()
            result = self._finish(_status(failure), failure)
        finally:
            self._scalars.close()
            self._run.close()
        if failure is not None and failure.cause != BEATEN:
            raise JobFailed(failure, result)
        return result

    def _ended_by(self) -> Failure | None:
        """What ended the run early, if anything did; what ends the controller is recorded and raised."""
        try:
            return self._supervise()
        except AllocationEnded as error:
            return Failure(str(error), cause="interrupt")
        except FolderGone:
            raise  # there is no place for a result
        except OSError as error:
            resume_it = f"free some space there, then `velodrome resume {self._run.name}` continues this run"
            fix = if_full(error, resume_it)
            message = f"the controller cannot continue: {error.strerror or error} ({self._run.path}){fix}"
            return Failure(message, cause="disk")
        except VelodromeError as error:
            return Failure(str(error), cause="start")
        except Exception as error:
            message = f"the controller failed: {type(error).__name__}: {error}"
            self._finish("failed", Failure(message, cause="controller"))
            raise
        except BaseException as error:
            with suppress(FolderGone):
                self._finish("interrupted", Failure(_interruption(error), cause="interrupt"))
            raise

    def _supervise(self) -> Failure | None:
        """Start the plan and watch it to its end; with other ports if they were taken."""
        failure: Failure | None = None
        attached, launcher = self._attached, self._admitted.launcher
        for attempt in range(PORT_TRIES):
            if failure is not None:
                self._warn(failure)
            if attached is None:
                self._plan = self._make_plan()
                files.write_text(self._run.path / "plan.json", json.dumps(self._plan.as_json(), indent=2) + "\n")
            else:
                self._plan = attached.plan
            if attempt == 0 and self._on_start is not None:
                self._on_start(self._plan, self._run)
            known = () if attached is None else attached.known
            supervisor = Supervisor(
                self._run, self._plan, launcher, self._take, self._state, resume=self._resume,
                attached=attached is not None, known=known, stop=self._stop,
            )
            failure = supervisor.watch()
            if failure is None or failure.cause != "port" or attached is not None:
                break
        return failure

    def _make_plan(self) -> Plan:
        """The plan of the run on the hosts that its launcher allocates."""
        job = self._admitted.job
        allocation = self._admitted.launcher.allocate(
            job, self._run.path, lambda text: self._record(make_event("wait", message=text))
        )
        return make_plan(
            self._run.name, job, allocation.hosts, allocation.port, placement=allocation.placement,
            addresses=allocation.addresses, capacity=allocation.capacity, facts=allocation.facts,
        )

    def _warn(self, failure: Failure) -> None:
        message = f"{failure.message}; trying again with other ports"
        self._record(make_event("warning", role=failure.role, rank=failure.rank, message=message))

    def _record(self, event: Event) -> None:
        """Record an event of the controller itself."""
        self._run.add_event(event)
        self._state.add(event)
        self._take(self._state, event)

    def _take(self, state: RunState, event: Event) -> None:
        self._scalars.take(event)
        self._listener(state, event)

    def _finish(self, status: Ended, failure: Failure | None) -> Result:
        """Write the result."""
        run = self._run
        with deferred():
            run.release_reserve()
            if not run.is_in_place:
                raise FolderGone(f"run {run.name!r}", run.path)
            result = make_result(
                self._plan, self._state, str(run.path.resolve()), status, ended=run.now(), failure=failure,
                launcher=self._admitted.launcher.name,
            )
            with suppress(OSError):  # a full disk is reported elsewhere
                write_session(run.path / "tensorboard", self._plan.job, result)
            run.finish(result)
            return result


def _status(failure: Failure | None) -> Ended:
    if failure is None:
        return "finished"
    return "interrupted" if failure.cause in (BEATEN, "interrupt") else "failed"


def _interruption(error: BaseException) -> str:
    number = error.code - 128 if isinstance(error, SystemExit) and isinstance(error.code, int) else 0
    return f"ended by {signal.Signals(number).name}" if number in set(signal.Signals) else "interrupted by Ctrl-C"


def record_failure(
    store: Store, name: str, job: Job, error: VelodromeError, seconds: float, launcher: Launcher
) -> JobFailed:
    """A job that could not even begin, kept as a failed run: memory or data may have gone since it was checked.

    If that cannot be written, nothing else can: that error is raised.
    """
    failure = Failure(str(error), cause="request" if isinstance(error, BadRequest) else "start")
    folder = store.at(store.path / name)
    if (recorded := folder.result()) is not None:
        return JobFailed(failure, recorded)
    run = store.reopen(name) if folder.path.exists() else store.create(name, job)
    ended, plan = run.now(), Plan(name, job, ())
    try:
        result = make_result(
            plan, RunState.of(plan, ended - seconds, run.events()), str(run.path.resolve()), "failed", ended=ended,
            failure=failure, launcher=launcher.name,
        )
        run.finish(result)
    finally:
        run.close()
    return JobFailed(failure, result)
