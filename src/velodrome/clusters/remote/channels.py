"""Byte streams to the agents of hosts, and how an agent gets to its host.

The agent's modules are sent through the stream to a line of Python that runs them, so a host needs nothing else. The
stream may be the pipes of a child process that reaches the host, or two files that both sides see; other launchers have
streams of their own.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import IO, Protocol

from velodrome import files
from velodrome.clusters.remote import agent
from velodrome.clusters.remote.agent import write_all

_POLL_SECONDS = 0.1
#: How long a child process may take to end when its input is closed: one that reached its host, and another one.
_END_SECONDS, _ABANDON_SECONDS = 5.0, 0.2
_KEPT_LINES = 50


class Channel(Protocol):
    """A byte stream to the agent of a host. `read` and `write` are called by a thread each."""

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none at the end."""

    def write(self, data: bytes) -> None:
        """Write all of the bytes; `OSError` if the stream ended."""

    def end_reason(self) -> str:
        """Why the stream ended, as the end of a sentence."""

    def close(self) -> None:
        """End the stream, and with it the agent."""


class PipeChannel:
    """A stream through the pipes of a child process, such as a client that is connected to a host."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Start it, with `variables` where the environment does not have them."""
        self._errors: deque[bytes] = deque(maxlen=_KEPT_LINES)
        #: Whether anything came: a client that is still connecting does not end with its input.
        self._connected = False
        # Not in our process group: Ctrl-C ends the run first, and with it the stream.
        self._popen = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env={**(variables or {}), **os.environ},
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._popen.stderr is not None
        with suppress(OSError, ValueError):
            self._errors.extend(self._popen.stderr)

    def read(self) -> bytes:
        assert self._popen.stdout is not None
        try:
            data = os.read(self._popen.stdout.fileno(), 1 << 16)
        except ValueError:
            return b""
        self._connected = self._connected or bool(data)
        return data

    def write(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        try:
            write_all(self._popen.stdin.fileno(), data)
        except ValueError as error:
            raise BrokenPipeError(str(error)) from error

    def ended(self) -> tuple[str, int | None]:
        """The last lines that it printed to standard error, and its exit code; None if it has not ended."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(2.0)
        self._listener.join(1.0)
        return b"".join(self._errors.copy()).decode(errors="replace").strip(), self._popen.poll()

    def end_reason(self) -> str:
        errors, code = self.ended()
        return errors.rpartition("\n")[2].strip() or f"it ended with code {code}"

    def close(self, seconds: float | None = None) -> None:
        """Close its input and wait for its end; end it if that takes longer than these seconds."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(seconds or (_END_SECONDS if self._connected else _ABANDON_SECONDS))
        except subprocess.TimeoutExpired:
            self._popen.terminate()  # so that it can clean up
            try:
                self._popen.wait(1.0)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


class FileChannel:
    """A stream of two files: one that we append to, and one that we read from its beginning."""

    def __init__(self, folder: Path, ended: Callable[[], str | None]) -> None:
        """`ended` returns why nothing more will come, None while something may."""
        self._folder, self._ended = folder, ended
        self._closed = False
        self._reading: IO[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._writing = (folder / "in").open("ab", buffering=0)

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none when the job is over."""
        outbox = self._folder / "out"
        while not self._closed:
            over = self._ended() is not None  # asked first: what was written before is still read
            if self._reading is None and outbox.exists():
                self._reading = files.open_regular(outbox, inside=self._folder)
            if self._reading is not None and (data := self._reading.read(1 << 16)):
                return data
            if over:
                break
            time.sleep(_POLL_SECONDS)
        return b""

    def write(self, data: bytes) -> None:
        if self._closed:
            raise BrokenPipeError("the channel is closed")
        write_all(self._writing.fileno(), data)

    def end_reason(self) -> str:
        return f"is released: {self._ended() or 'the job was ended'}"

    def close(self) -> None:
        self._closed = True
        self._writing.close()


PACKAGE = agent.__name__
#: In the order in which they import one another.
_MODULES = ("__init__", "cleaning", "host", "session")
#: Reads so many bytes, makes modules of them, and serves what follows. The words behind it are the agent's own.
_PROGRAM = """
import json, os, sys, types
size, data = int(sys.argv[1]), b""
while len(data) < size:
    more = os.read(0, size - len(data))
    if not more:
        sys.exit(3)
    data += more
for name, text in json.loads(data):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
sys.modules[name].main(sys.argv[2:])
"""
#: The same as one line without anything that a login shell interprets within quotes: csh does so with newlines and `!`.
_LINE = f"import base64;exec(base64.b64decode('{base64.b64encode(_PROGRAM.encode()).decode()}'))"


def agent_source() -> bytes:
    """The agent's modules, as the line of `agent_words` reads them."""
    parts = PACKAGE.split(".")
    modules = [(".".join(parts[: number + 1]), "") for number in range(len(parts) - 1)]
    for name in _MODULES:
        text = (resources.files(PACKAGE) / f"{name}.py").read_text(encoding="utf-8")
        modules.append((f"{PACKAGE}.{name}".removesuffix(".__init__"), text))
    return json.dumps(modules).encode()


def agent_words(session: str, lease: float, root: str, *files: str) -> list[str]:
    """The words behind an interpreter that start an agent, whose standard input begins with `agent_source`.

    A session's name marks all that it starts, and with it the agent ends. `lease` is how many seconds it waits for its
    controller to be heard again, 0 for ever. `root` is the folder of its caches and of its runs. With an inbox and an
    outbox it serves these files; a third one is a heartbeat that counts as a sign of life too.
    """
    return ["-I", "-S", "-c", _LINE, str(len(agent_source())), session, f"{lease:g}", root, *files]
