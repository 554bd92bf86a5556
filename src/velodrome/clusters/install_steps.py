"""Runs the commands that make an environment: each has a time limit, and none outlives the process that started it."""

from __future__ import annotations

import hashlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from velodrome.clusters.local import cleaner
from velodrome.errors import VelodromeError
from velodrome.variables import TOKEN

#: Receives what is being done, as a short phrase; called when a step begins and as it proceeds.
Progress = Callable[[str], None]
#: A download on a slow line and a build on one core fit.
STEP_SECONDS = 3600.0
_SHOWN_LINES = 15
#: Modules by which a process trains, or waits to.
_TRAINING = frozenset({"velodrome.worker", "velodrome.worker.template", "velodrome.run.manual"})


def inherited_variables() -> dict[str, str]:
    """The variables of this process, without those by which another interpreter would find our packages."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}


@dataclass(frozen=True)
class Steps:
    """Runs one command after the other; all of them, and what they start, carry a token."""

    token: str
    progress: Progress

    def run(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Run a command; its output becomes progress, and its last lines the reason if it fails."""
        deadline = time.monotonic() + STEP_SECONDS
        process = subprocess.Popen(
            words, env={**inherited_variables(), **(variables or {}), TOKEN: self.token}, cwd="/", bufsize=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        last: deque[str] = deque(maxlen=_SHOWN_LINES)
        try:
            for line in _lines(process, deadline):
                last.append(line)
                if phrase := _phrase(line):
                    self.progress(phrase)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise VelodromeError(
                f"a step took more than {STEP_SECONDS / 60:g} minutes: {' '.join(words[:5])} …"
            ) from None
        finally:
            _end(process)
        if code:
            shown = "\n".join(last)
            raise VelodromeError(f"'{' '.join(words[:5])} …' ended with code {code}:\n{shown}")


@contextmanager
def guarded(home: Path, progress: Progress) -> Iterator[Steps]:
    """Steps that write into a folder; if this process is killed, a guardian ends them."""
    token = _token(home)
    guardian = cleaner.start_guardian(token)
    try:
        yield Steps(token, progress)
    finally:
        cleaner.dismiss(guardian)


def end_leftovers(home: Path) -> None:
    """End the steps of a process that was killed; its guardian may not have done so yet. Whoever holds the folder's
    lock may call it: nobody else has steps then."""
    if left := cleaner.end_marked(_token(home)):
        raise VelodromeError(f"processes of an installation that was killed still use {str(home)!r} and cannot be "
                             f"ended: kill {' '.join(map(str, left))}, then run the command again")


def refuse_in_use(home: Path, name: str) -> None:
    """Refuse to touch an environment in which something trains: it may still import modules."""
    python = {str(folder / "bin" / "python") for folder in (home, home.resolve())}
    training = [
        process.pid for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or [""])[0] in python and _TRAINING & set(words)
    ]
    if training:
        raise VelodromeError(f"engine {name!r} is training now (process {', '.join(map(str, training))}): wait until "
                             "its runs have ended, or end them, then run the command again")


def _token(home: Path) -> str:
    return f"install-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:24]}"


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """The lines that a process prints, as they come; `TimeoutExpired` if there is no end of them by the deadline."""
    assert process.stdout is not None
    rest = b""
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired(process.args, STEP_SECONDS)
            data = os.read(stream.fileno(), 1 << 16)
            *whole, rest = (rest + data).split(b"\n")
            if not data and rest:
                whole.append(rest)
            yield from (line.decode(errors="replace").rstrip() for line in whole)
            if not data:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not been waited for, and its process group."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _phrase(line: str) -> str:
    """What a line of pip's output says about its progress; empty if nothing."""
    found = re.match(r"\s*(Downloading|Building wheel for|Installing collected packages)[: ]*(.*)", line)
    if found is None:
        return ""
    what = found[2].split("/")[-1].split(" (")[0]
    shown = what if len(what) < 60 else what[:57] + "…"
    return f"{found[1].lower()} {shown}".replace("installing collected", "installing")
