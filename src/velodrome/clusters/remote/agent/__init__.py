"""The lifeline of a host: a process that starts the processes of runs there, passes on what they print, and ends them.

The controller sends the modules of this package through the byte stream that the agent then serves
(`velodrome.clusters.remote.channels`), so a host needs nothing but Python for it. Standard library only, and nothing
of `velodrome` outside this package.

This module has the byte streams between an agent and its controller, and the frames that travel in them. A stream is a
pair of pipes, or two files in a directory that both sides see. A frame is two lengths, a JSON object, and bytes that
belong to it.
"""

from __future__ import annotations

import json
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

#: What an agent writes first: whatever a login shell prints stands before it.
GREETING = b"\nvelodrome-agent 1\n"
#: Bytes of a file that travel in one frame.
CHUNK = 1 << 18
_LENGTHS = struct.Struct(">II")
_LARGEST = 64 << 20
_MOST_NOISE = 1 << 20

Header = dict[str, Any]


def encode(header: Header, body: bytes = b"") -> bytes:
    """A frame as bytes."""
    head = json.dumps(header).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


class Decoder:
    """Takes bytes as they come and returns whole frames; with `greeting` those that follow it."""

    def __init__(self, *, greeting: bool = False) -> None:
        self._data = bytearray()
        self.greeted = not greeting
        #: The end of what came before the greeting.
        self.noise = b""

    def feed(self, data: bytes) -> list[tuple[Header, bytes]]:
        """The frames that are whole now; `ValueError` if this is no stream of frames."""
        self._data += data
        if not self.greeted and not self._find_greeting():
            return []
        frames = []
        while len(self._data) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(self._data)
            if head + body > _LARGEST:
                raise ValueError("a frame is too long")
            begin = _LENGTHS.size + head
            if len(self._data) < begin + body:
                break
            frames.append((_header(bytes(self._data[_LENGTHS.size : begin])), bytes(self._data[begin : begin + body])))
            del self._data[: begin + body]
        return frames

    def _find_greeting(self) -> bool:
        before, greeting, after = bytes(self._data).partition(GREETING)
        self.noise = before[-4000:]
        if not greeting:
            if len(before) > _MOST_NOISE:
                raise ValueError("no agent answered")
            return False
        self.greeted, self._data = True, bytearray(after)
        return True


def _header(data: bytes) -> Header:
    try:
        header = json.loads(data)
    except RecursionError:
        raise ValueError("a header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("a header is no JSON object")
    return header


#: How often an agent looks whether its files are still there, and whether the heartbeat has changed.
_LOOK_SECONDS = 1.0


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the bytes, however many the other side takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Stream(Protocol):
    """Both directions of a byte stream."""

    #: How many signs of life came that are no bytes.
    beats: int

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none at the end."""

    def write(self, data: bytes) -> None:
        """Write all of the bytes; `OSError` if nobody will read them."""


class Pipes:
    """The standard input and output of this process, which nothing that it starts can hold any more."""

    beats = 0

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)

    def read(self) -> bytes:
        return os.read(self._input, 1 << 16)

    def write(self, data: bytes) -> None:
        write_all(self._output, data)


class Files:
    """An inbox that the other side appends to, and an outbox that it reads; each side polls.

    The stream ends when the inbox is removed. While nobody writes there, `heartbeat` may show that somebody will: a
    file whose content changes now and then. A file system that fails is silent, and has not ended.
    """

    def __init__(self, inbox: Path, outbox: Path, heartbeat: Path | None = None, poll: float = 0.1) -> None:
        self._inbox, self._heartbeat, self._poll = inbox, heartbeat, poll
        self.beats = 0
        self._last_beat = b""
        self._looked = time.monotonic()
        self._reading: IO[bytes] | None = None
        outbox.parent.mkdir(parents=True, exist_ok=True)
        self._writing = outbox.open("ab", buffering=0)

    def read(self) -> bytes:
        while True:
            with suppress(OSError):
                if self._reading is None and self._inbox.exists():
                    self._reading = self._inbox.open("rb", buffering=0)
                if self._reading is not None and (data := self._reading.read(1 << 16)):
                    return data
                if time.monotonic() - self._looked > _LOOK_SECONDS and self._was_removed():
                    return b""
            time.sleep(self._poll)

    def _was_removed(self) -> bool:
        """Whether the inbox has been removed; counts a change of the heartbeat on the way."""
        self._looked = time.monotonic()
        if self._heartbeat is not None and self._heartbeat.exists():
            # Opened every time: that is when a network file system asks its server.
            beat = self._heartbeat.read_bytes()
            self.beats += beat != self._last_beat
            self._last_beat = beat
        return self._reading is not None and not self._inbox.exists()

    def write(self, data: bytes) -> None:
        write_all(self._writing.fileno(), data)
