"""Frames, in which controller and agent talk: two lengths, a JSON object, and bytes that belong to it."""

from __future__ import annotations

import json
import struct
from typing import Any

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
        before, found, after = bytes(self._data).partition(GREETING)
        self.noise = before[-4000:]
        if not found:
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
