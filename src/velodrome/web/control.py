"""Starts, stops and resumes races and runs: as processes of the same command that a person would type."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from velodrome import files
from velodrome.errors import BadRequest
from velodrome.run.store import LOCK, RunFolder

#: Seconds within which a command that was started must have begun or ended; after that the page looks on.
_BEGIN_SECONDS = 90.0
#: Seconds that commands have to end after Ctrl-C before they are killed.
_END_SECONDS = 20.0
#: Bytes of a command's output that are read.
_MOST_OUTPUT = 64 << 10
#: Commands that may run at once.
MOST_AT_ONCE = 4
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Command:
    """A command that a page started."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        """The end of what it wrote."""
        try:
            with self.output.open("rb") as stream:
                stream.seek(max(0, self.output.stat().st_size - _MOST_OUTPUT))
                return _STYLE.sub("", stream.read().decode("utf-8", "replace"))
        except OSError:
            return ""

    def complaint(self) -> str:
        """Why it ended, in its own words."""
        said = self.said().strip()
        _, found, own = said.rpartition("velodrome: ")
        text = own if found else said.rpartition("\n")[2]
        return text or f"the command ended with exit code {self.process.returncode}"


@dataclass
class Control:
    """The commands that this server started. They end with it."""

    runs: Path
    commands: list[Command] = field(default_factory=list)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, words: Sequence[str]) -> Command:
        """Start `velodrome WORDS`, detached from the terminal, with its output in a file."""
        self.commands = [command for command in self.commands if command.process.poll() is None]
        if len(self.commands) >= MOST_AT_ONCE:
            raise BadRequest(f"{MOST_AT_ONCE} commands of this page are running already: wait for one, or stop it")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="velodrome-ui-")
        handle, name = tempfile.mkstemp(dir=self._folder.name, suffix=".log")
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "velodrome", *words], stdin=subprocess.DEVNULL, stdout=handle,
                stderr=handle, start_new_session=True, env=environment,
            )
        finally:
            os.close(handle)
        command = Command(tuple(words), process, Path(name))
        self.commands.append(command)
        return command

    async def begun(self, command: Command, folder: Path) -> bool:
        """Wait until a command holds a folder; False if it ended before. True as well if that takes very long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _BEGIN_SECONDS
        while loop.time() < end:
            if command.process.poll() is not None:
                return command.process.returncode == 0
            if RunFolder(folder).is_locked():
                return True
            await asyncio.sleep(0.2)
        return True

    def stop(self, folder: Path) -> None:
        """Press Ctrl-C for the command that holds a run or race, whoever started it."""
        process = _holder(folder)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End what this server started: Ctrl-C first, and the end of what does not obey."""
        running = [command.process for command in self.commands if command.process.poll() is None]
        for process in running:
            with suppress(OSError):
                process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        if self._folder is not None:
            self._folder.cleanup()


def _holder(folder: Path) -> psutil.Process:
    """The process that holds a run or race; refused if that is not surely one of ours."""
    locked = [path for path in (folder, *_inside(folder)) if RunFolder(path).is_locked()]
    if not locked:
        raise BadRequest(f"{folder.name!r} is not running")
    for path in locked:
        try:
            number = int(files.read_text(path / LOCK, 64, inside=path).strip())
            process = psutil.Process(number)
            is_ours = "velodrome" in " ".join(process.cmdline()) and process.uids().real == os.getuid()
        except (OSError, ValueError, psutil.Error):
            continue
        if is_ours and number != os.getpid():
            return process
    raise BadRequest(f"the process that runs {folder.name!r} cannot be found here: press Ctrl-C where it was started")


def _inside(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path.parent for path in folder.glob(f"*/{LOCK}")]
    return []
