"""Ends whatever a run started, found by the run's token: process groups, sessions and parents do not matter.

Run as a program it is the guardian: it outlives a controller that is killed, ends the run's processes, and exits.
Standard library only, so that it starts at once.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

#: How far the times of files may lag behind the clock.
_FILE_CLOCK_SECONDS = 0.05
#: Signals that end programs; the guardian ignores them, since it exits by itself when its run is over.
_IGNORED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

#: Loaded by its path: the guardian runs without site packages, ours among them.
_SEGMENTS = Path(__file__).parents[2] / "catalog" / "segments.py"


def marked(token: str) -> list[int]:
    """Processes, other than this one, that belong to the run with a token."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")
            if int(entry.name) != os.getpid() and _carries(entry, token)]


def _carries(process: Path, token: str) -> bool:
    """Whether a process has the token in its environment or, if it was forked from a template, in a mapping's name."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
        if f"VELODROME_TOKEN={token}".encode() in variables:
            return True
        forked = b"VELODROME_TOKEN=template" in variables
        return forked and f"/memfd:velodrome-{token} ".encode() in (process / "maps").read_bytes()
    except OSError:
        return False


def end_marked(token: str, limit: float = 5.0) -> list[int]:
    """Kill every process of a run, also those that they start; return those that are left after the limit."""
    deadline = time.monotonic() + limit
    while (left := marked(token)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.02)
    return left


def start_guardian(token: str, shared: str | None = None) -> subprocess.Popen[bytes]:
    """Start the guardian of a run; `shared` is the pattern of its segments in /dev/shm, if it may have some. It holds
    only its input."""
    # It starts with these blocked, so that they cannot end it before it ignores them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        segments = [] if shared is None else [shared, str(time.time() - _FILE_CLOCK_SECONDS)]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, token, *segments], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Let the guardian clean up once more and exit."""
    assert guardian.stdin is not None
    guardian.stdin.close()
    try:
        guardian.wait(10.0)
    except subprocess.TimeoutExpired:
        guardian.kill()
        guardian.wait()


def guard(token: str, shared: str | None = None, started: str = "") -> None:
    """Wait until the controller's end of our standard input closes, however it ends, then end the run."""
    sys.stdin.buffer.read()
    end_marked(token)
    if shared is None:
        return
    # A process that is killed while MPI starts leaves its segment behind.
    for path in Path("/dev/shm").glob(shared):
        path.unlink(missing_ok=True)
    # Should MPICH name it otherwise than we expect, it is known by being new and held by nobody.
    runpy.run_path(str(_SEGMENTS))["remove_orphans"](float(started))


if __name__ == "__main__":
    guard(*sys.argv[1:])
