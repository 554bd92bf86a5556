"""The launcher of this machine, and the group of a run's processes on it.

The group delivers their output, reports their ends, reads the stacks of those that stall, and leaves nothing behind.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from velodrome.catalog.registry import engine_of, engine_with_key
from velodrome.catalog.segments import pattern_of_run
from velodrome.clusters.definitions import ClusterOptions
from velodrome.clusters.interrupts import rollback
from velodrome.clusters.launcher import (
    Allocation,
    Deliver,
    Diagnosis,
    Examination,
    Exit,
    Finding,
    Group,
    Launcher,
    Notice,
    no_notice,
    refusals,
)
from velodrome.clusters.local.processes import LocalProcess, Template, TemplateKilled, start_cold, start_warm
from velodrome.clusters.plan import LOOPBACK, PORTS, Plan, Process
from velodrome.clusters.preflight import check_here, disk_and_data
from velodrome.clusters.remote.agent import cleaning
from velodrome.clusters.remote.agent.host import stack_of
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job
from velodrome.job.values import Fault
from velodrome.models.own import is_users


def free_port(host: str = "") -> int:
    """A port that no process of this machine listens on at this moment, on any of its addresses."""
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return port
    raise VelodromeError(f"no free port between {PORTS.start} and {PORTS.stop}: other programs occupy them")


#: Where the innermost Python frame of a process is that waits for others, under the frameworks that scripts use.
_COLLECTIVES = (
    "/torch/distributed/", "/torch/nn/parallel/distributed.py", "/torch/autograd/graph.py", "/horovod/",
    "/tensorflow/python/eager/execute.py", "/tensorflow/python/eager/context.py", "/mpi4py/",
)


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended (SIGSTOP): then it holds up the others, whatever their events look like."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def waits_for_others(stack: str) -> bool:
    """Whether the main thread is in a call that ends when other processes make theirs: a collective, or a backward
    pass, in which DistributedDataParallel sums gradients."""
    main = next((part for part in stack.split("\nThread ") if '"MainThread"' in part.partition("\n")[0]), "")
    innermost = main.partition("\n")[2].partition("\n")[0]
    return any(place in innermost for place in _COLLECTIVES)


def shows_users_code(stack: str) -> bool:
    """Whether any thread is in a line of the user's own files."""
    files = re.findall(r"^\s+.* \((/.*\.py):\d+\)$", stack, re.MULTILINE)
    return any(is_users(file) for file in files)


def most_relevant_thread(stack: str) -> str:
    """The thread that matters most to a reader: one in the user's code, or the main one."""
    threads = ["Thread " + part.rstrip() for part in stack.split("\nThread ")[1:]]
    main = [thread for thread in threads if '"MainThread"' in thread.splitlines()[0]]
    return next(iter([*filter(shows_users_code, threads), *main, *threads, stack]))


#: How long processes that were killed may take to disappear.
KILL_SECONDS = 5.0


@dataclass
class _Member:
    started: LocalProcess
    #: The beginning of a line whose end was not read yet.
    rest: bytes = b""
    exit: Exit | None = None


@dataclass
class LocalGroup(Group):
    """All processes of a plan on this machine; a guardian ends them if the controller is killed."""

    token: str
    _members: dict[Process, _Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._guardian = cleaning.start_guardian(self.token, pattern_of_run(self.token))
        self._selector = selectors.DefaultSelector()

    def add(self, started: LocalProcess) -> None:
        """Take over a process that was started."""
        member = self._members[started.process] = _Member(started)
        os.set_blocking(started.output.fileno(), False)
        self._selector.register(started.output, selectors.EVENT_READ, member)

    def wait(self, seconds: float, deliver: Deliver) -> None:
        for key, _ in self._selector.select(timeout=seconds):
            self._read(key.data, deliver)
        for member in self._members.values():
            if member.exit is None and (code := member.started.returncode()) is not None:
                # All of its output is delivered before anybody judges how it ended.
                while self._read(member, deliver):
                    pass
                if member.rest:
                    deliver(member.started.process, member.rest.decode(errors="replace"))
                    member.rest = b""
                member.exit = Exit.from_returncode(code)

    def _read(self, member: _Member, deliver: Deliver) -> bool:
        """Deliver what a process wrote; whether there may be more."""
        output = member.started.output
        try:
            data = os.read(output.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            with suppress(KeyError):
                self._selector.unregister(output)
            member.started.wait(0.5)
            return False
        *lines, member.rest = (member.rest + data).split(b"\n")
        for line in lines:
            deliver(member.started.process, line.decode(errors="replace"))
        return True

    def exit_of(self, process: Process) -> Exit | None:
        return self._members[process].exit

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        pid = self._members[process].started.pid
        if brief:
            return Diagnosis(stopped=is_stopped(pid))
        stack = stack_of(pid, sys.executable)
        return Diagnosis(stack, most_relevant_thread(stack), is_stopped(pid), shows_users_code(stack),
                         waits=waits_for_others(stack))

    def begin_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        """Kill or suspend processes, as a fault asks for."""
        self._signal(processes, signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)

    def end_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        self._signal(processes, signal.SIGCONT)

    def _signal(self, processes: Sequence[Process], number: signal.Signals) -> None:
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._members[process].started.pid, number)

    def stop(self) -> None:
        started = [member.started for member in self._members.values()]
        for process in started:
            process.kill()
        for process in started:
            process.wait(KILL_SECONDS)
            process.output.close()
        self._selector.close()
        cleaning.end_all(cleaning.of_run, self.token)
        cleaning.dismiss(self._guardian)


class HereLauncher(Launcher):
    """A launcher whose processes run on this machine, with its packages."""

    def __init__(self, options: ClusterOptions | None = None) -> None:
        if options is not None and options.place:
            raise BadRequest(f"--place: --on {self.name} has one host; choose a cluster of several hosts")

    def check(self, job: Job) -> None:
        """Refuse what is not installed here, or needs more memory than is free."""
        check_here(job)

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """What keeps this machine from running a job: packages, memory, modules, disk and data."""
        findings = [*refusals(lambda: self.check(job)), *disk_and_data(job)]
        if measure and not findings:
            nothing = f"--on {self.name} has one host, so there is nothing to measure"
            findings.append(Finding("ok", "network", None, nothing))
        return Examination(findings)


class LocalLauncher(HereLauncher):
    """Starts processes on this machine."""

    name = "local"
    faults: Sequence[str] = ("kill", "pause")

    def __init__(self, options: ClusterOptions | None = None, *, port: Callable[[str], int] = free_port) -> None:
        """`port` finds a free one."""
        super().__init__(options)
        self._port = port
        #: One process per prepared engine that has imported it.
        self._templates: dict[str, Template] = {}

    def prepare(self, engines: Sequence[str]) -> None:
        """Import the engines once, all at the same time; their processes then start warm."""
        forking = [name for name in engines if engine_with_key(name).forks]
        for engine in forking:
            self._template(engine)
        for engine in forking:
            try:
                self._templates[engine].wait_until_ready()
            except TemplateKilled:
                self._template(engine).wait_until_ready()

    def _template(self, engine: str) -> Template:
        """The template of an engine; a new one if there is none or it died."""
        template = self._templates.get(engine)
        if template is not None and not template.alive:
            template.close()
            template = None
        if template is None:
            template = self._templates[engine] = Template(engine)
        return template

    def template_for(self, plan: Plan) -> Template | None:
        """What the processes of a plan can be forked from; None if they start cold."""
        engine = engine_of(plan.job).key
        # A script may set variables before it imports its framework, so it always gets a new interpreter.
        return self._template(engine) if engine in self._templates and plan.job.script is None else None

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        return Allocation((LOOPBACK,), self._port)

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> LocalGroup:
        group = self.group(plan)
        with rollback(group.stop):
            for process in plan.processes:
                group.add(self.start_process(plan, process, folder, group.token, resume=resume))
        return group

    def group(self, plan: Plan) -> LocalGroup:
        """The group of a plan's processes, which have not been started yet."""
        return LocalGroup(secrets.token_hex(12))

    def start_process(self, plan: Plan, process: Process, folder: Path, token: str, *, resume: bool) -> LocalProcess:
        """Start one process of a plan."""
        if (template := self.template_for(plan)) is not None:
            return start_warm(template, plan, process, folder, token, resume=resume)
        return start_cold(plan, process, folder, token, resume=resume)

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._templates.clear()
