"""Ends whatever a run started, found by the token in its environment: groups, sessions and parents do not matter.

Run as a program it is the guardian: it outlives a controller that is killed, ends the run's processes, and goes.
Standard library only, so that it starts in a blink.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def marked(token: str) -> list[int]:
    """Processes, other than this one, whose environment holds the token."""
    wanted = f"VELODROME_TOKEN={token}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def end_marked(token: str, limit: float = 5.0) -> list[int]:
    """Kill every process of a run, also those that are being born; those that would not die within the limit."""
    deadline = time.monotonic() + limit
    while (left := marked(token)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.02)
    return left


def start_guardian(token: str) -> subprocess.Popen[bytes]:
    """Start the guardian of a run. It holds nothing of ours but its standard input."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, token], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
    )


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Let the guardian look once more, and go."""
    assert guardian.stdin is not None
    guardian.stdin.close()
    try:
        guardian.wait(10.0)
    except subprocess.TimeoutExpired:
        guardian.kill()
        guardian.wait()


def guard(token: str) -> None:
    """Wait until the controller's end of our standard input closes, however it ends, then end the run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(token)


if __name__ == "__main__":
    guard(sys.argv[1])
