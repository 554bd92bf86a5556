"""Further processes of `velodrome serve` on the same port: one for each core, so that none waits for Python's lock.

The kernel divides connections among them. They start once every model is ready, and end with the first process, in
whatever way that ends: each has a standard input that closes then. One that fails is not replaced; the others answer.
Run as a program, this module is such a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.models.served import ONNX
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
    """The further processes of a server."""

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

    from velodrome.web.serve import security_of, serve_app
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


if __name__ == "__main__":
    _run(int(sys.argv[1]))
