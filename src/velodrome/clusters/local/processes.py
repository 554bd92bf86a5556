"""Training processes of this machine: cold, with an interpreter of their own; warm, forked from a template that has
only imported the engine; and one in the foreground of a terminal.

Each leads a session of its own, so that Ctrl-C reaches it only through the controller. A process that has trained is
never used again, so a warm start differs from a cold one only in the time it takes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from velodrome.catalog.registry import engine_of
from velodrome.clusters.environments import interpreter_of
from velodrome.clusters.launcher import Exit
from velodrome.clusters.plan import SUPERVISED, TRAINING, Plan, Process, arguments, command, environment
from velodrome.clusters.remote.agent.cleaning import kill_group
from velodrome.errors import VelodromeError
from velodrome.variables import CONTROLLER, NO_TOKEN, TOKEN

Wrap = Callable[[Sequence[str]], list[str]]


@dataclass
class ColdProcess:
    """A child of the controller."""

    process: Process
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def output(self) -> IO[bytes]:
        assert self.popen.stdout is not None
        return self.popen.stdout

    def returncode(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self.popen.poll()

    def kill(self) -> None:
        """End it and its process group at once."""
        kill_group(self.popen.pid)
        if self.popen.stdin is not None:
            with suppress(OSError):
                self.popen.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def start_cold(
    plan: Plan, process: Process, folder: Path, token: str, *, resume: bool = False, wrap: Wrap = list
) -> ColdProcess:
    """Start one process of a plan. Must be called from the main thread: a worker dies with the thread that made it.
    `wrap` turns its command into one that becomes it (`exec`) somewhere else, such as in a namespace."""
    python = str(interpreter_of(engine_of(plan.job).key))
    with (folder / "logs" / f"{process.file_name}.log").open("ab") as log:
        popen = subprocess.Popen(
            wrap(command(python, plan, process, folder, resume=resume)),
            env={**os.environ, **environment(plan, process), TOKEN: token, CONTROLLER: str(os.getpid())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    return ColdProcess(process, popen)


#: Space in the command line of a template for the longer ones of its children.
PADDING = 1500
#: Keeps setproctitle from using the memory of the environment, in which the cleaner looks for the token.
TITLE_OPTIONS = {"SPT_NOENV": "1"}
#: Importing an engine on a busy machine takes seconds; more than this means it hangs.
READY_SECONDS = 120.0


class TemplateKilled(VelodromeError):
    """A template was ended by a signal: from outside, or because the system ran out of memory."""


class Template:
    """One engine, imported once."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [str(interpreter_of(engine)), "-P", "-m", "velodrome.training.template", "--engine", engine,
                 "--socket", str(theirs.fileno()), "x" * PADDING],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()], start_new_session=True,
                env={**os.environ, **TITLE_OPTIONS, TOKEN: NO_TOKEN},
            )
        self._control = ours
        self._codes: dict[int, int] = {}
        self._ready = False

    def wait_until_ready(self) -> None:
        """Return when the engine is imported."""
        if not self._ready:
            self._answer()
            self._ready = True

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """A new child with these as standard input, output and error; its process id."""
        self.wait_until_ready()
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
        except OSError as error:
            reason = self._last_error_line() or error
            raise VelodromeError(f"cannot start warm {self._engine} processes: {reason}") from error
        pid = int(self._answer()["pid"])
        # The number of a process that ended long ago may be used again.
        self._codes.pop(pid, None)
        return pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def _answer(self) -> dict[str, Any]:
        """The next message that does not report a child's end, within a limit."""
        self._control.settimeout(READY_SECONDS)
        try:
            while "code" in (answer := self._receive()):
                pass
        except (OSError, ValueError) as error:
            reason = self._last_error_line() or error
            code = self._popen.poll()
            if code is not None and code < 0:
                raise TemplateKilled(
                    f"the process that imports {self._engine} was ended by {signal.Signals(-code).name}: it was killed "
                    "from outside, or the system ran out of memory"
                ) from error
            raise VelodromeError(f"the process that imports {self._engine} did not answer: {reason}") from error
        return answer

    def _receive(self) -> dict[str, Any]:
        data = self._control.recv(1 << 16)
        if not data:
            raise ConnectionError("the template process ended")
        answer: dict[str, Any] = json.loads(data)
        if "code" in answer:
            self._codes[answer["pid"]] = answer["code"]
        return answer

    def _last_error_line(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            _, errors = self._popen.communicate(timeout=1)
            return errors.decode(errors="replace").strip().rpartition("\n")[2]
        return ""

    def code_of(self, pid: int) -> int | None:
        """How a child ended, or None while it runs. A template that is gone took its children with it."""
        self._control.setblocking(False)
        try:
            while pid not in self._codes:
                self._receive()
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            return self._codes.get(pid, -signal.SIGKILL)
        return self._codes[pid]

    def close(self) -> None:
        self._control.close()
        with suppress(ProcessLookupError):
            self._popen.kill()
        self._popen.communicate()


@dataclass
class WarmProcess:
    """A process that was forked from a template."""

    process: Process
    pid: int
    output: IO[bytes]
    _template: Template
    _lifeline: IO[bytes]
    _code: int | None = None

    def returncode(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        if self._code is None:
            self._code = self._template.code_of(self.pid)
        return self._code

    def kill(self) -> None:
        """End it and its process group at once; also if it has ended, since what it forked may still run."""
        kill_group(self.pid)
        with suppress(OSError):
            self._lifeline.close()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        deadline = time.monotonic() + seconds
        while self.returncode() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


#: A process of this machine.
LocalProcess = ColdProcess | WarmProcess


@dataclass(frozen=True)
class Inside:
    """An emulated host that a forked process moves onto: namespaces of a process, control groups, and variables."""

    holder: int
    groups: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def start_warm(
    template: Template, plan: Plan, process: Process, folder: Path, token: str, *, resume: bool = False,
    inside: Inside | None = None,
) -> WarmProcess:
    """Start one process of a plan as a copy of a process that has imported its engine."""
    their_input, lifeline = os.pipe()
    output, their_output = os.pipe()
    log = os.open(folder / "logs" / f"{process.file_name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    request: dict[str, Any] = {
        "words": [*arguments(plan, process, folder, resume=resume), *SUPERVISED],
        "environment": {**os.environ, **environment(plan, process), TOKEN: token, CONTROLLER: str(os.getpid())},
        "folder": str(Path.cwd()),
    }
    if inside is not None:
        request["environment"] |= inside.variables
        request["inside"] = {"holder": inside.holder, "groups": list(inside.groups)}
    try:
        pid = template.fork(request, [their_input, their_output, log])
    except BaseException:
        os.close(lifeline)
        os.close(output)
        raise
    finally:
        for descriptor in (their_input, their_output, log):
            os.close(descriptor)
    return WarmProcess(process, pid, os.fdopen(output, "rb", buffering=0), template, os.fdopen(lifeline, "wb"))


#: How long a process may take to end after Ctrl-C before it is killed.
INTERRUPT_SECONDS = 10.0


def run_in_foreground(key: str, options: Sequence[str], deliver: Callable[[str], None]) -> tuple[Exit, bool]:
    """Run a training process to its end and deliver its output lines; how it ended, and whether Ctrl-C was pressed.

    It leads a session of its own, so that Ctrl-C reaches it only through us: once to report, again to be killed. It
    inherits our environment and standard error.
    """
    child = subprocess.Popen(
        [str(interpreter_of(key)), "-P", "-m", TRAINING, *options, "--lifeline"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        env={**os.environ, CONTROLLER: str(os.getpid())},
    )
    interrupts = 0

    timer = threading.Timer(INTERRUPT_SECONDS, kill_group, [child.pid])
    timer.daemon = True
    assert child.stdout is not None
    try:
        while True:
            try:
                for line in child.stdout:
                    deliver(line.rstrip("\n"))
                return Exit.from_returncode(child.wait()), interrupts > 0
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    kill_group(child.pid)
                else:
                    child.send_signal(signal.SIGINT)
                    timer.start()
    finally:
        timer.cancel()
        kill_group(child.pid)
        child.wait()
