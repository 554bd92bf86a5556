"""Tools of the tests that do harm: jobs that last, ways to reach their processes, and what must be true afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: A job that lasts until somebody ends it.
LONG = ("--batch-size", 8, "--epochs", 5000, "--no-checkpoints")
#: Generous: a busy machine needs a minute to import a framework.
START_SECONDS = 180.0


@dataclass
class Scene:
    """One run under attack."""

    runs: Path
    name: str = "a"
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.runs / self.name

    def words(self, engine: str, strategy: str, *more: object, workers: int = 2) -> list[str]:
        """The command that trains with this run's name."""
        words = ["train", "--engine", engine, "--strategy", strategy, "--runs", self.runs, "--name", self.name]
        return [str(word) for word in [*words, *(["--workers", workers] if strategy != "single" else []), *more]]

    def start(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        """Start the command as a process of its own, to be killed or interrupted."""
        process = subprocess.Popen(
            [sys.executable, "-m", "velodrome", *map(str, words)], cwd=HERE, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment},
        )
        self.started.append(process)
        return process

    def start_line(self, line: str) -> subprocess.Popen[str]:
        """Start a line of a shell, as a person does; Ctrl-C reaches what it starts."""
        process = subprocess.Popen(
            ["bash", "-c", line], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.started.append(process)
        return process

    def events(self) -> list[dict[str, Any]]:
        found = []
        with suppress(OSError):
            for line in (self.path / "events.jsonl").read_text().splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def result(self) -> dict[str, Any]:
        return json.loads((self.path / "result.json").read_text())

    def pid(self, role: str, rank: int) -> int:
        wanted = f" --run {self.name} --role {role} --rank {rank} --folder {self.path} "
        for pid, line in _command_lines().items():
            if wanted in line:
                return pid
        raise LookupError(f"no {role} {rank}")

    def until(self, holds: Callable[[list[dict[str, Any]]], bool], seconds: float = START_SECONDS) -> None:
        """Wait for events that say so."""
        deadline = time.monotonic() + seconds
        while not holds(self.events()):
            for process in self.started:
                assert process.poll() is None, f"ended too early:\n{process.stdout.read() if process.stdout else ''}"
            assert time.monotonic() < deadline, f"waited in vain; {len(self.events())} events"
            time.sleep(0.1)

    def until_gone(self, seconds: float = 60.0) -> None:
        """Wait until no process of this run is left."""
        marker = f" --run {self.name} --role "
        deadline = time.monotonic() + seconds
        while any(marker in line and str(self.path) in line for line in _command_lines().values()):
            assert time.monotonic() < deadline, "its processes are still there"
            time.sleep(0.1)

    def when_training(self, act: Callable[[], object], seconds: float = START_SECONDS) -> threading.Thread:
        """Do something from a thread as soon as the job makes progress."""

        def wait_and_act() -> None:
            self.until(training, seconds)
            act()

        thread = threading.Thread(target=wait_and_act, daemon=True)
        thread.start()
        return thread

    def send(self, number: signal.Signals, role: str, rank: int) -> Callable[[], None]:
        return lambda: os.kill(self.pid(role, rank), number)


def _command_lines() -> dict[int, str]:
    """The command line of every process by its number; empty for one that is dead."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def training(events: list[dict[str, Any]]) -> bool:
    return any(event["kind"] == "progress" for event in events)


def running(program: str) -> bool:
    """Whether a process of this program's name is there."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            dead = "\nState:\tZ" in (entry / "status").read_text()
            if (entry / "comm").read_text().strip() == Path(program).name[:15] and not dead:
                return True
    return False


def left_in(folder: Path) -> list[str]:
    """What a run has left in its folder of temporary files; PyTorch keeps one there for all programs of a user."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_")]
