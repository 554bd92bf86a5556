"""The processes of a run on this machine as one group: their output, their ends, and that nothing of them is left."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Protocol

from velodrome.catalog.segments import pattern_of_run
from velodrome.clusters.launcher import Deliver, Diagnosis, Exit
from velodrome.clusters.local import cleaner
from velodrome.clusters.local.stacks import (
    is_stopped,
    most_relevant_thread,
    shows_users_code,
    stack_of,
    waits_for_others,
)
from velodrome.clusters.plan import Process
from velodrome.job.faults import Fault

#: How long processes that were killed may take to disappear.
KILL_SECONDS = 5.0


class LocalProcess(Protocol):
    """A process of this machine, started cold or warm."""

    @property
    def process(self) -> Process: ...

    @property
    def pid(self) -> int: ...

    @property
    def output(self) -> IO[bytes]: ...

    def returncode(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""

    def kill(self) -> None:
        """End it and its process group at once."""

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""


@dataclass
class _Member:
    started: LocalProcess
    #: The beginning of a line whose end was not read yet.
    rest: bytes = b""
    exit: Exit | None = None


@dataclass
class LocalGroup:
    """All processes of a plan on this machine; a guardian ends them if the controller is killed."""

    token: str
    _members: dict[Process, _Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._guardian = cleaner.start_guardian(self.token, pattern_of_run(self.token))
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
        stack = stack_of(pid)
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

    def collect(self, given_up: Callable[[], bool]) -> None:
        """Nothing to do: processes of this machine work in the run's folder itself."""

    def stop(self) -> None:
        started = [member.started for member in self._members.values()]
        for one in started:
            one.kill()
        for one in started:
            one.wait(KILL_SECONDS)
            one.output.close()
        self._selector.close()
        cleaner.end_marked(self.token)
        cleaner.dismiss(self._guardian)
