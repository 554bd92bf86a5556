"""What a host's agent may send in place of our frames: the host is lost with a sentence, or the frame is left out."""

from __future__ import annotations

import struct
import threading
import time

import pytest

from velodrome.clusters.remote.agent import GREETING, encode
from velodrome.clusters.remote.link import Link

pytestmark = pytest.mark.unit


class Prepared:
    """A stream that holds some bytes and then stays open."""

    def __init__(self, data: bytes) -> None:
        self._data, self._closed = [data], threading.Event()

    def read(self) -> bytes:
        if not self._data:
            self._closed.wait(20)
        return self._data.pop() if self._data else b""

    def write(self, data: bytes) -> None:
        pass

    def end_reason(self) -> str:
        return "ended its stream"

    def close(self) -> None:
        self._closed.set()


def frame(head: bytes) -> bytes:
    return struct.pack(">II", len(head), 0) + head


@pytest.mark.parametrize("head", [b"[]", b"5", b"null", b'"x"', b"[" * 100_000, b"9" * 5_000, b"", b"\xff"],
                         ids=lambda head: repr(head[:9]))
def test_a_header_that_is_no_object_loses_the_host_at_once(head: bytes) -> None:
    link = Link("h", Prepared(GREETING + encode({"is": "ready"}) + frame(head)), 600.0)
    deadline = time.monotonic() + 10
    while link.lost is None and time.monotonic() < deadline:
        time.sleep(0.01)
    lost = link.lost
    link.close()
    assert lost is not None
    assert lost.startswith("'h' cannot be understood: ")


@pytest.mark.parametrize("head", [
    b'{"is": "answer", "n": [1]}', b'{"is": "answer", "n": {}}', b'{"is": "answer"}',
    b'{"is": "pong", "asked": 1.0}',
    b'{"is": "pong", "asked": "x", "clock": "y"}', b'{"is": "pong", "asked": 1.0, "clock": NaN}', b"{}",
    b'{"is": "pong", "asked": ' + b"9" * 400 + b', "clock": 1.0}', b'{"is": ["ready"]}',
], ids=lambda head: repr(head[:40]))
def test_an_object_with_fields_of_other_types_is_left_out(head: bytes) -> None:
    link = Link("h", Prepared(GREETING + frame(head) + encode({"is": "ready", "host": "after"})), 600.0)
    link.wait_until_ready(10)
    link.close()
    assert link.facts["host"] == "after"
    assert link.clock_offset == 0.0
