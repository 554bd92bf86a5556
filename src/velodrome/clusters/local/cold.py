"""Training processes that start cold, each with its own interpreter.

Each leads a session of its own, so that Ctrl-C reaches it only through the controller.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from velodrome.catalog.registry import engine_of
from velodrome.clusters.environments import interpreter_of
from velodrome.clusters.plan import Plan, Process, arguments, environment
from velodrome.variables import CONTROLLER, TOKEN

WORKER = "velodrome.worker"
Wrap = Callable[[Sequence[str]], list[str]]
#: Options of a training process that a controller starts and supervises.
SUPERVISED = ("--lifeline", "--supervised")


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
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
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


def command(plan: Plan, process: Process, folder: Path, *, resume: bool = False) -> list[str]:
    """The command line of a training process of this machine."""
    words = arguments(plan, process, folder, resume=resume)
    return [str(interpreter_of(engine_of(plan.job).key)), "-P", "-m", WORKER, *words, *SUPERVISED]


def start_cold(
    plan: Plan, process: Process, folder: Path, token: str, *, resume: bool = False, wrap: Wrap = list
) -> ColdProcess:
    """Start one process of a plan. Must be called from the main thread: a worker dies with the thread that made it.
    `wrap` turns its command into one that becomes it (`exec`) somewhere else, such as in a namespace."""
    log = (folder / "logs" / f"{process.file_name}.log").open("ab")
    try:
        popen = subprocess.Popen(
            wrap(command(plan, process, folder, resume=resume)),
            env={**os.environ, **environment(plan, process), TOKEN: token, CONTROLLER: str(os.getpid())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    finally:
        log.close()
    return ColdProcess(process, popen)
