"""Processes on this machine. Each leads a session of its own, so that Ctrl-C reaches it only through us."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from velodrome.cluster.plan import Plan, Process, command, environment
from velodrome.variables import TOKEN


@dataclass
class Started:
    """A process that was started: its output, its end, and the ways to end it."""

    process: Process
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def output(self) -> IO[bytes]:
        assert self.popen.stdout is not None
        return self.popen.stdout

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self.popen.poll()

    def end(self) -> None:
        """End it and everything it started in its session, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        if self.popen.stdin is not None:
            with suppress(OSError):
                self.popen.stdin.close()

    def wait(self, seconds: float) -> bool:
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def start(plan: Plan, process: Process, folder: Path, token: str, *, resume: bool = False) -> Started:
    """Start one process of a plan. Must be called from the main thread: a worker dies with the thread that made it."""
    log = (folder / "logs" / f"{process.file_name}.log").open("ab")
    try:
        popen = subprocess.Popen(
            command(plan, process, folder, resume=resume),
            env={**os.environ, **environment(plan, process), TOKEN: token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    finally:
        log.close()
    return Started(process, popen)
