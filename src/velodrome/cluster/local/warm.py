"""Processes that start warm: forked from one that has imported the engine, so that a race of small jobs is not a race
of imports. A process that has trained is never used again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from velodrome.cluster.plan import SUPERVISED, Plan, Process, arguments, environment
from velodrome.errors import VelodromeError
from velodrome.variables import TOKEN
from velodrome.worker.template import NO_TOKEN, PADDING

#: Importing an engine on a busy machine takes seconds; more than this means it hangs.
READY_SECONDS = 120.0


class Template:
    """One engine, imported once."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "velodrome.worker.template", "--engine", engine,
                 "--socket", str(theirs.fileno()), "x" * PADDING],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()], start_new_session=True, env={**os.environ, TOKEN: NO_TOKEN},
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
            reason = self._last_words() or error
            raise VelodromeError(f"cannot start warm {self._engine} processes: {reason}") from error
        pid = int(self._answer()["pid"])
        # The number of a process that ended long ago may come round again.
        self._codes.pop(pid, None)
        return pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def _answer(self) -> dict[str, Any]:
        """The next message that is not about a child's end, within a limit."""
        self._control.settimeout(READY_SECONDS)
        try:
            while "code" in (answer := self._receive()):
                pass
        except (OSError, ValueError) as error:
            reason = self._last_words() or error
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

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            _, said = self._popen.communicate(timeout=1)
            return said.decode(errors="replace").strip().rpartition("\n")[2]
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
class WarmStarted:
    """A forked process, with the face of one that was started cold."""

    process: Process
    pid: int
    output: IO[bytes]
    _template: Template
    _lifeline: IO[bytes]
    _code: int | None = None

    def exit_code(self) -> int | None:
        if self._code is None:
            self._code = self._template.code_of(self.pid)
        return self._code

    def end(self) -> None:
        # Also when it has ended: what it forked may live on in its group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(OSError):
            self._lifeline.close()

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.exit_code() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


@dataclass
class WarmLauncher:
    """Keeps one template an engine, and starts processes from them."""

    _templates: dict[str, Template] = field(default_factory=dict)

    def warm_up(self, engine: str) -> Template:
        """Begin to import an engine; returns at once."""
        template = self._templates.get(engine)
        if template is not None and not template.alive:
            template.close()
        if template is None or not template.alive:
            template = self._templates[engine] = Template(engine)
        return template

    def wait_until_ready(self) -> None:
        for template in self._templates.values():
            template.wait_until_ready()

    def start(self, plan: Plan, process: Process, folder: Path, token: str, *, resume: bool = False) -> WarmStarted:
        template = self.warm_up(plan.job.engine)
        their_input, lifeline = os.pipe()
        output, their_output = os.pipe()
        log = os.open(folder / "logs" / f"{process.file_name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        request = {
            "words": [*arguments(plan, process, folder, resume=resume), *SUPERVISED],
            "environment": {**os.environ, **environment(plan, process), TOKEN: token},
            "folder": str(Path.cwd()),
            "path": sys.path,
        }
        try:
            pid = template.fork(request, [their_input, their_output, log])
        except BaseException:
            os.close(lifeline)
            os.close(output)
            raise
        finally:
            for descriptor in (their_input, their_output, log):
                os.close(descriptor)
        return WarmStarted(process, pid, os.fdopen(output, "rb", buffering=0), template, os.fdopen(lifeline, "wb"))

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._templates.clear()
