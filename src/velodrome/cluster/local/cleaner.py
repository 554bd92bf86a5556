"""Ends whatever a run started, found by the token in its environment: groups, sessions and parents do not matter.

Run as a program it is the guardian: it outlives a controller that is killed, ends the run's processes, and goes.
Standard library only, so that it starts in a blink.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

#: What a user or a system sends to end things; the guardian leaves when its run is over.
_DEAF_TO = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

#: Loaded by its path: the guardian runs without site packages, ours among them.
_SEGMENTS = Path(__file__).parents[2] / "offers" / "segments.py"


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


def start_guardian(token: str, shared: str) -> subprocess.Popen[bytes]:
    """Start the guardian of a run, told how the run's shared memory is called. It holds nothing but its input."""
    # It is born with these blocked, so that not even its first moments can be interrupted.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, token, shared, str(time.time())], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Let the guardian look once more, and go."""
    assert guardian.stdin is not None
    guardian.stdin.close()
    try:
        guardian.wait(10.0)
    except subprocess.TimeoutExpired:
        guardian.kill()
        guardian.wait()


def guard(token: str, shared: str, started: str) -> None:
    """Wait until the controller's end of our standard input closes, however it ends, then end the run."""
    sys.stdin.buffer.read()
    end_marked(token)
    # A process that is killed while MPI starts leaves its segment behind.
    for path in Path("/dev/shm").glob(shared):
        path.unlink(missing_ok=True)
    # Should MPICH name it otherwise than we expect, it is known by being new and held by nobody.
    runpy.run_path(str(_SEGMENTS))["remove_orphans"](float(started))


if __name__ == "__main__":
    guard(*sys.argv[1:])
