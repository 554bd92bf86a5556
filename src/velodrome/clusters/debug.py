"""The launcher that trains inside the controller, for debuggers and tests: no process is started.

Its limits: one process per job; the framework is imported into the controller and stays as the first job configured it;
time limits do not apply, and only Ctrl-C ends a job that hangs; what a job prints goes to the terminal, not to a log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from velodrome.catalog.registry import engine_of
from velodrome.clusters.environments import interpreter_of
from velodrome.clusters.launcher import Allocation, Deliver, Exit, Group, Notice, no_notice
from velodrome.clusters.local.launcher import HereLauncher, free_port
from velodrome.clusters.plan import LOOPBACK, Plan, Process, arguments, environment
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of


class DebugLauncher(HereLauncher):
    """Trains a job of one process in the calling thread."""

    name = "debug"

    def check(self, job: Job) -> None:
        processes = len(roles_of(job))
        if processes > 1:
            raise BadRequest(
                f"--on 'debug': it trains one process inside this command, and {job.engine}/{job.strategy} with "
                f"--workers {job.workers} has {processes}; use --on local, or a strategy of one process"
            )
        if (python := interpreter_of(engine_of(job).key)) != Path(sys.executable):
            raise BadRequest(
                f"--on 'debug': {job.engine} is installed in an environment of its own ({python}), which cannot be "
                "imported into this command; use --on local"
            )
        super().check(job)

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        return Allocation((LOOPBACK,), free_port)

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> DebugGroup:
        (process,) = plan.processes
        return DebugGroup(plan, process, folder, resume)


@dataclass
class DebugGroup(Group):
    """One process that is none: the first `wait` trains."""

    plan: Plan
    process: Process
    folder: Path
    resume: bool
    exit: Exit | None = None

    def wait(self, seconds: float, deliver: Deliver) -> None:
        """Train to the end, however long that takes, and deliver lines as they come."""
        if self.exit is not None:
            return
        from velodrome.training import __main__ as worker
        from velodrome.training.context import LineEmitter

        process = self.process
        events = LineEmitter(lambda line: deliver(process, line), process.role, process.rank)
        options = worker.parse_options(arguments(self.plan, process, self.folder, resume=self.resume))
        with _environment(environment(self.plan, process)), _same_cores():
            try:
                worker.work(options, events)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if _is_signal(error):
                    raise
                worker.report(error, events)
                self.exit = Exit.from_returncode(worker.exit_code_of(error))
            else:
                self.exit = Exit.from_returncode(0)

    def exit_of(self, process: Process) -> Exit | None:
        return self.exit

    def stop(self) -> None:
        """Nothing to do: it trains only inside `wait`."""


def _is_signal(error: BaseException) -> bool:
    """Whether a handler of the command raised it for a signal such as SIGTERM (exit code 128 + its number)."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the block; afterwards the environment is as it was."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _same_cores() -> Iterator[None]:
    """Let the block pin this process to cores; afterwards it may use the same ones as before."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
