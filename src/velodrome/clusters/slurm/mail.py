"""The controller's end of the files through which it talks to the agent of a node: no connection is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from velodrome import files

_POLL_SECONDS = 0.1


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
        view = memoryview(data)
        while view:
            view = view[self._writing.write(view) or 0 :]

    def end_reason(self) -> str:
        return f"is released: {self._ended() or 'the job was ended'}"

    def close(self) -> None:
        self._closed = True
        self._writing.close()
