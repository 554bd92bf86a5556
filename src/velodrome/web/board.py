"""TensorBoard, or the page of the model, for the runs of a page: one process each, on loopback, that ends with the
server."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from velodrome.errors import BadRequest

#: Seconds within which a server must answer: TensorBoard imports for long, and a model may have to be exported.
_START_SECONDS = 60.0
MOST_BOARDS = 3


@dataclass
class Boards:
    """Servers of other pages by the folder that they show."""

    _boards: dict[Path, tuple[subprocess.Popen[bytes], int]] = field(default_factory=dict)

    async def address(self, folder: Path) -> str:
        """Where TensorBoard shows a folder; started if it does not yet."""
        if not folder.is_dir():
            raise BadRequest("this run has no folder 'tensorboard'")
        words = ["tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--load_fast", "false"]
        return await self._started(folder, words, f"TensorBoard did not start; try it by hand: tensorboard --logdir "
                                   f"{folder}")

    async def model_address(self, run: Path) -> str:
        """Where the model of a run can be used; `velodrome serve` is started if it is not yet."""
        words = ["velodrome", "serve", str(run), "--runs", str(run.parent), "--no-browser", "--processes", "1"]
        return await self._started(run, words, "the page of the model did not start; `velodrome serve "
                                   f"{shlex.quote(str(run))}` says why")

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
