"""The program between a stream to a pod and the files of the pod's agent; needs only Python.

It is started anew whenever the stream broke. Both directions are numbered by bytes, so that nothing is lost or doubled:
it sends what the outbox has from a position on, and appends to the inbox only what comes next there, whole messages at
a time.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from contextlib import suppress

#: A kind, the position of the first byte, and how many bytes follow.
HEAD = struct.Struct(">cQI")
#: To the pod: bytes for the inbox; the end of the agent. From the pod: how long the inbox is; bytes of the outbox.
WRITE, END, LENGTH, DATA = b"W", b"E", b"L", b"D"
_POLL_SECONDS = 0.02
_BLOCK = 1 << 16


def message(kind: bytes, position: int, data: bytes = b"") -> bytes:
    """A message as bytes."""
    return HEAD.pack(kind, position, len(data)) + data


class Messages:
    """Takes bytes as they come and returns whole messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, int, bytes]]:
        self._data += data
        whole = []
        while len(self._data) >= HEAD.size:
            kind, position, length = HEAD.unpack_from(self._data)
            end = HEAD.size + length
            if len(self._data) < end:
                break
            whole.append((kind, position, bytes(self._data[HEAD.size : end])))
            del self._data[:end]
        return whole


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _append(inbox: int, position: int, data: bytes) -> int:
    """Append to the inbox what belongs at its end; how long it is then. Another relay may not have ended yet."""
    fcntl.flock(inbox, fcntl.LOCK_EX)
    try:
        length = os.fstat(inbox).st_size
        if position == length:
            view = memoryview(data)
            while view:
                view = view[os.write(inbox, view) :]
            length += len(data)
        return length
    finally:
        fcntl.flock(inbox, fcntl.LOCK_UN)


def main(folder: str, position: int) -> None:
    """Serve the files `in` and `out` of a folder on standard input and output."""
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    path = folder + "/in"
    inbox = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    _send(message(LENGTH, os.fstat(inbox).st_size))
    messages, outbox = Messages(), -1
    while True:
        if outbox < 0:
            with suppress(OSError):
                outbox = os.open(folder + "/out", os.O_RDONLY)
        data = os.pread(outbox, _BLOCK, position) if outbox >= 0 else b""
        if data:
            _send(message(DATA, position, data))
            position += len(data)
        if not select.select([0], [], [], 0.0 if data else _POLL_SECONDS)[0]:
            continue
        came = os.read(0, _BLOCK)
        if not came:
            return
        for kind, where, body in messages.feed(came):
            if kind == END:
                os.unlink(path)  # noqa: PTH108
                time.sleep(_POLL_SECONDS)
                return
            _send(message(LENGTH, _append(inbox, where, body)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
