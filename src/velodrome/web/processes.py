"""The processes that our servers start: commands (`Control`), pages of others (`Boards`) and siblings (`Siblings`).

Run as a program, this module is one of the further processes of `velodrome serve`. uvicorn's own workers (`workers=2`,
tried with 0.54) do not replace them: they go on answering after their first process was killed, begin before a model is
there, and each would export it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from velodrome import files
from velodrome.errors import BadRequest
from velodrome.models.description import ONNX
from velodrome.run.store import LOCK, RunFolder
from velodrome.web.security import Security

if TYPE_CHECKING:
    from velodrome.web.served_models import ServedModels


#: More would hardly help, and each has its own copy of the models.
MOST_PROCESSES = 4
#: Bytes of all models above which one process has to do.
_LARGE = 256 << 20
#: Seconds that one has to end in, after it was asked to.
_END_SECONDS = 4.0


def usual_processes() -> int:
    """As many as there are cores; one where the kernel does not divide connections."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES) if sys.platform == "linux" else 1


class Siblings:
    """Further processes of `velodrome serve` on the same port: one for each core, so that none waits for Python's lock.

    The kernel divides connections among them. They start once every model is ready, and end with the first process, in
    whatever way that ends: each has a standard input that closes then. One that fails is not replaced; the others
    answer.
    """

    def __init__(self, names: Sequence[str], runs: Path, models: ServedModels, processes: int) -> None:
        """`processes` counts the first one, too."""
        self._names, self._runs, self._models, self._all = list(names), runs, models, processes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._starting: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether there may be any."""
        return self._all > 1

    def begin(self, listener: socket.socket, security: Security) -> None:
        """Start them as soon as all models are ready."""
        if self.wanted:
            self._starting = asyncio.get_running_loop().create_task(self._start(listener, security))

    async def _start(self, listener: socket.socket, security: Security) -> None:
        slots = list(self._models.slots.values())
        for slot in slots:
            await slot.ready.wait()
        if not all(slot.model is not None and slot.model.threads == 1 for slot in slots):
            return  # one has failed, or is divided among the cores
        with suppress(OSError):
            if sum((slot.path / "model" / ONNX).stat().st_size for slot in slots) <= _LARGE:
                for _ in range(self._all - 1):
                    self._processes.append(self._started(listener, security))

    def _started(self, listener: socket.socket, security: Security) -> subprocess.Popen[bytes]:
        host, *rest = listener.getsockname()
        given = {
            "names": self._names, "runs": str(self._runs), "host": host, "known_as": sorted(security.names),
            "token": security.token, "csrf": security.csrf, "processes": self._all,
        }
        with socket.socket(listener.family, listener.type) as another:
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            another.bind((host, *rest))
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(another.fileno())], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[another.fileno()],
                start_new_session=True,
            )
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.write(json.dumps(given).encode() + b"\n")
            process.stdin.flush()
        return process

    async def end(self) -> None:
        """Leave none of them running."""
        if self._starting is not None:
            self._starting.cancel()
            with suppress(asyncio.CancelledError):
                await self._starting
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                await asyncio.to_thread(process.wait, _END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(descriptor: int) -> None:
    import uvicorn

    from velodrome.web.model_api import security_of, serve_app
    from velodrome.web.server import configured

    given: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    security = security_of(given["host"], names=frozenset(given["known_as"]), token=given["token"], csrf=given["csrf"])
    app = serve_app(given["names"], Path(given["runs"]), given["host"], security=security,
                    processes=given["processes"], is_first=False)
    server = uvicorn.Server(configured(app))

    def watch() -> None:
        sys.stdin.buffer.read()  # until the first process ends
        server.should_exit = True
        threading.Timer(_END_SECONDS, os._exit, [1]).start()

    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])
    os._exit(0)


#: Seconds within which a server must answer: TensorBoard imports for long, and a model may have to be exported.
_START_SECONDS = 60.0
MOST_BOARDS = 3


@dataclass
class Boards:
    """TensorBoard, or the page of the model, for the runs of a page: one process each, on loopback, by folder."""

    _boards: dict[Path, tuple[subprocess.Popen[bytes], int]] = field(default_factory=dict)

    async def address(self, folder: Path) -> str:
        """Where TensorBoard shows a folder; started if it does not yet."""
        if not folder.is_dir():
            raise BadRequest("this run has no folder 'tensorboard'")
        words = ["tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--load_fast", "false"]
        return await self._started(folder, words,
            f"TensorBoard did not start; start it yourself: tensorboard --logdir {folder}")

    async def model_address(self, run: Path) -> str:
        """Where the model of a run can be used; `velodrome serve` is started if it is not yet."""
        words = ["velodrome", "serve", str(run), "--runs", str(run.parent), "--no-browser", "--processes", "1"]
        return await self._started(run, words,
            f"the page of the model did not start; `velodrome serve {shlex.quote(str(run))}` shows why")

    async def _started(self, folder: Path, words: list[str], failed: str) -> str:
        """The address of the server of a folder; `python -m WORDS --port PORT` is started if it does not run."""
        for path, (process, port) in list(self._boards.items()):
            if process.poll() is not None:
                del self._boards[path]
            elif path == folder:
                return f"http://127.0.0.1:{port}/"
        if len(self._boards) >= MOST_BOARDS:
            self._end(self._boards.pop(next(iter(self._boards)))[0])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *words, "--port", str(port)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        self._boards[folder] = (process, port)
        loop = asyncio.get_running_loop()
        end = loop.time() + _START_SECONDS
        while loop.time() < end and process.poll() is None:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return f"http://127.0.0.1:{port}/"
            await asyncio.sleep(0.2)
        self._end(self._boards.pop(folder)[0])
        raise BadRequest(failed)

    def close(self) -> None:
        for process, _ in self._boards.values():
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # it stores nothing
        process.wait(10)


#: Seconds within which a command that was started must have begun or ended; after that the page looks on.
_BEGIN_SECONDS = 90.0
#: Seconds that commands have to end after Ctrl-C before they are killed.
_STOP_SECONDS = 20.0
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
        _, separator, own = said.rpartition("velodrome: ")
        text = own if separator else said.rpartition("\n")[2]
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
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        if self._folder is not None:
            self._folder.cleanup()


def _holder(folder: Path) -> psutil.Process:
    """The process that holds a run or race; refused if it may not be one of ours."""
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


if __name__ == "__main__":
    _run(int(sys.argv[1]))
