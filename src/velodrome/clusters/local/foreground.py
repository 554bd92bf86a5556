"""One training process of this machine in the foreground of a terminal, for people who start a job themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from velodrome.clusters.environments import interpreter_of
from velodrome.clusters.launcher import Exit
from velodrome.clusters.local.cold import WORKER
from velodrome.variables import CONTROLLER

#: How long a process may take to end after Ctrl-C before it is killed.
INTERRUPT_SECONDS = 10.0


def run_in_foreground(key: str, options: Sequence[str], deliver: Callable[[str], None]) -> tuple[Exit, bool]:
    """Run a training process to its end and deliver its output lines; how it ended, and whether Ctrl-C was pressed.

    It leads a session of its own, so that Ctrl-C reaches it only through us: once to report, again to be killed. It
    inherits our environment and standard error.
    """
    child = subprocess.Popen(
        [str(interpreter_of(key)), "-P", "-m", WORKER, *options, "--lifeline"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        env={**os.environ, CONTROLLER: str(os.getpid())},
    )
    interrupts = 0

    def kill() -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(INTERRUPT_SECONDS, kill)
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
                    kill()
                else:
                    child.send_signal(signal.SIGINT)
                    timer.start()
    finally:
        timer.cancel()
        kill()
        child.wait()
