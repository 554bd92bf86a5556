"""Ends everything of a session or run, found by its mark: process groups, sessions and parents do not matter. Removes
what it left; also if the agent is killed, and what sessions left that ended without their guardian, as after a reboot.

Run as a program it is the guardian of a run of this machine: it outlives a controller that is killed, ends the run's
processes, and exits.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

#: The variable that marks what an agent started: its session, and a dash and the run's token if it belongs to one.
MARK = "VELODROME_AGENT"
_SHARED = Path("/dev/shm")
#: Signals that end programs; guardians ignore them, since they exit by themselves.
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
#: How far the times of files may lag behind the clock.
_FILE_CLOCK_SECONDS = 0.05


def _processes(carries: Callable[[Path, list[bytes]], bool]) -> list[int]:
    """Processes, other than this one, that carry something: in their folder of /proc, or in their environment."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            with suppress(OSError):
                if carries(entry, (entry / "environ").read_bytes().split(b"\0")):
                    pids.append(int(entry.name))
    return pids


def marked(mark: str) -> list[int]:
    """Processes that carry a mark, or one that begins with it and a dash."""
    wanted = f"{MARK}={mark}".encode()
    return _processes(lambda process, variables: any(
        variable == wanted or variable.startswith(wanted + b"-") for variable in variables
    ))


def of_run(token: str) -> list[int]:
    """Processes of this machine that belong to the run with a token: it is in their environment or, if they were forked
    from a template, in a mapping's name."""
    return _processes(lambda process, variables: f"VELODROME_TOKEN={token}".encode() in variables or (
        b"VELODROME_TOKEN=template" in variables
        and f"/memfd:velodrome-{token} ".encode() in (process / "maps").read_bytes()
    ))


def end_all(find: Callable[[str], list[int]], mark: str, limit: float = 5.0) -> list[int]:
    """Kill all processes with a mark, also those that they start; the processes that are left after the limit."""
    deadline = time.monotonic() + limit
    while (left := find(mark)) and time.monotonic() < deadline:
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
    left = end_all(marked, mark)
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
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, reading)  # the stream among them, which must end with the agent
    os.closerange(reading + 1, 4096)
    os.chdir("/")
    text = b""
    with suppress(OSError):
        while data := os.read(reading, 1 << 16):
            text += data
    notes = [json.loads(line) for line in text.split(b"\n")[:-1]]
    clean(session, [note["segments"] for note in notes if "segments" in note],
          next((note["folder"] for note in reversed(notes) if "folder" in note), ""))


def start_guardian(token: str, shared: str | None = None) -> subprocess.Popen[bytes]:
    """Start the guardian of a run; `shared` is the pattern of its segments in /dev/shm, if it may have some. It holds
    only its input."""
    # It starts with these blocked, so that they cannot end it before it ignores them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
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
    end_all(of_run, token)
    if shared is None:
        return
    # A process that is killed while MPI starts leaves its segment behind.
    for path in _SHARED.glob(shared):
        path.unlink(missing_ok=True)
    # Should MPICH name it otherwise than we expect, it is known by being new and held by nobody.
    # Loaded by its path: the guardian runs without site packages, ours among them.
    segments = Path(__file__).parents[3] / "catalog" / "segments.py"
    runpy.run_path(str(segments))["remove_orphans"](float(started))


#: In the folder of a session: one file for each host that has an agent of it, with the machine and the process.
_AGENT = ".agent-"
_CODE_SECONDS = 30 * 86400.0


def note_agent(folder: Path) -> None:
    """Note in the folder of a session that this process is an agent of it."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{_AGENT}{socket.gethostname()}").write_text(f"{_machine()}\n{os.getpid()}\n")


def remove_leftovers(root: Path) -> None:
    """Remove the folders of sessions whose agents are gone, and code that was not used for a month."""
    for folder in _inside(root / "sessions"):
        agents = list(folder.glob(f"{_AGENT}*"))
        if agents and all(_is_gone(agent, folder.name) for agent in agents):
            shutil.rmtree(folder, ignore_errors=True)
    for path in _inside(root / "code"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _CODE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _inside(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _is_gone(agent: Path, session: str) -> bool:
    """Whether an agent ran on this machine and does so no more; the root may lie on a disk that several hosts share."""
    try:
        machine, pid = agent.read_text().split("\n")[:2]
    except (OSError, ValueError):
        return False
    if machine != _machine():
        return False
    try:
        return session.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _machine() -> str:
    """An id of this machine and of the processes that are visible from here."""
    known = [socket.gethostname()]
    with suppress(OSError):
        known.append(Path("/etc/machine-id").read_text().strip())
    with suppress(OSError):
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(known)


if __name__ == "__main__":
    guard(*sys.argv[1:])
