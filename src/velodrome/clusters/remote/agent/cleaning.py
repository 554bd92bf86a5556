"""Ends everything of a session or run, found by its mark, and removes what it left; also if the agent is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

#: The variable that marks what an agent started: its session, and a dash and the run's token if it belongs to one.
MARK = "VELODROME_AGENT"
_SHARED = Path("/dev/shm")


def marked(mark: str) -> list[int]:
    """Processes, other than this one, that carry a mark or one that begins with it and a dash."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(one == wanted or one.startswith(wanted + b"-") for one in variables):
                found.append(int(entry.name))
    return found


def end_marked(mark: str, limit: float = 5.0) -> list[int]:
    """Kill them, also those that start meanwhile; those that are left after the limit."""
    deadline = time.monotonic() + limit
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return left


def kill_group(pid: int) -> None:
    """Kill a process and its process group."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def clean(mark: str, segments: Iterable[str], folder: str) -> list[int]:
    """End everything with a mark and remove its shared memory and its folder; processes that could not be ended."""
    left = end_marked(mark)
    for pattern in segments:
        for path in _SHARED.glob(Path(pattern).name):
            with suppress(OSError):
                path.unlink()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return left


class Guardian:
    """A process forked from the agent that cleans up when the agent is gone, in whatever way."""

    def __init__(self, session: str) -> None:
        reading, self._writing = os.pipe()
        if os.fork() == 0:
            try:
                _guard(session, reading)
            finally:
                os._exit(0)
        os.close(reading)

    def note(self, **what: str) -> None:
        """Let it know a `segments` pattern or the `folder` that is to be removed."""
        with suppress(OSError):
            os.write(self._writing, json.dumps(what).encode() + b"\n")


def _guard(session: str, reading: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, reading)  # the stream among them, which must end with the agent
    os.closerange(reading + 1, 4096)
    os.chdir("/")
    told = b""
    with suppress(OSError):
        while data := os.read(reading, 1 << 16):
            told += data
    notes = [json.loads(line) for line in told.split(b"\n")[:-1]]
    clean(session, [note["segments"] for note in notes if "segments" in note],
          next((note["folder"] for note in reversed(notes) if "folder" in note), ""))
