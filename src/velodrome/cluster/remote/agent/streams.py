"""Byte streams between an agent and its controller: pipes, or two files in a directory that both sides see."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO, Protocol


class Stream(Protocol):
    """Both directions of a byte stream."""

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none at the end."""

    def write(self, data: bytes) -> None:
        """Write all of the bytes; `OSError` if nobody will read them."""


class Pipes:
    """The standard input and output of this process, which nothing that it starts can hold any more."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)

    def read(self) -> bytes:
        return os.read(self._input, 1 << 16)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._output, view) :]


class Files:
    """An inbox that the other side appends to, and an outbox that it reads; each side polls. It has no end."""

    def __init__(self, inbox: Path, outbox: Path, poll: float = 0.1) -> None:
        self._inbox, self._poll = inbox, poll
        self._reading: IO[bytes] | None = None
        outbox.parent.mkdir(parents=True, exist_ok=True)
        self._writing = outbox.open("ab", buffering=0)

    def read(self) -> bytes:
        while True:
            if self._reading is None and self._inbox.exists():
                self._reading = self._inbox.open("rb", buffering=0)
            if self._reading is not None and (data := self._reading.read(1 << 16)):
                return data
            time.sleep(self._poll)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._writing.write(view) or 0 :]
