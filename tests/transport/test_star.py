"""Small buffers over TCP: sums, broadcasts, and peers that are missing or lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from velodrome.errors import PeerLost, PortTaken
from velodrome.transport.base import Ranks, StarTransport

STRANGE = (b"", b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n", b"velodrome-star-1\x00\x00\x00\x01", b"1 00 00\n",
           os.urandom(9000))
pytestmark = pytest.mark.usefixtures("secret")


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _all(size: int, work: Callable[[StarTransport], Any], seconds: float = 20.0) -> list[Any]:
    """What the work returned in every rank, each of which is a thread."""
    port = _port()

    def rank(number: int) -> Any:
        transport = StarTransport(Ranks("127.0.0.1", port, number, ("127.0.0.1",) * size), seconds)
        found = work(transport)
        transport.close()
        return found

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


def test_every_rank_gets_the_sum_of_all() -> None:
    def work(transport: StarTransport) -> Any:
        buffer = np.full((2, 3), 10.0**transport.rank)
        transport.all_reduce(buffer)
        return buffer

    for found in _all(3, work):
        np.testing.assert_array_equal(found, np.full((2, 3), 111.0))


def test_every_rank_gets_what_the_first_has_and_large_buffers_fit() -> None:
    def work(transport: StarTransport) -> Any:
        buffer = np.arange(3_000_000) * (transport.rank + 1)
        transport.broadcast(buffer)
        return int(buffer[-1])

    assert _all(3, work) == [2_999_999] * 3


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(PeerLost, match=r"worker 1 on 127\.0\.0\.1, worker 2 on .* did not connect within 0\.2 s"):
        StarTransport(Ranks("127.0.0.1", _port(), 0, ("127.0.0.1",) * 3), 0.2)
    with pytest.raises(PeerLost, match=r"worker 0 on 127\.0\.0\.1 could not be reached within 0\.2 s"):
        StarTransport(Ranks("127.0.0.1", _port(), 1, ("127.0.0.1",) * 2), 0.2)


def test_a_rank_that_leaves_is_named() -> None:
    port = _port()

    def first() -> StarTransport:
        return StarTransport(Ranks("127.0.0.1", port, 0, ("127.0.0.1",) * 2), 20.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first)
        other = StarTransport(Ranks("127.0.0.1", port, 1, ("127.0.0.1",) * 2), 20.0)
        centre = waiting.result()
    other._close_all()
    with pytest.raises(PeerLost, match=r"worker 1 on 127\.0\.0\.1 is gone"):
        centre.all_reduce(np.zeros(3))
    centre._close_all()


def test_a_stranger_is_not_taken_for_a_rank() -> None:
    port = _port()

    def first() -> StarTransport:
        return StarTransport(Ranks("127.0.0.1", port, 0, ("127.0.0.1",) * 2), 20.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first)
        # One says nothing and one something else; one says what a rank says, without its proof.
        strangers = [_connected(port) for _ in range(60)]
        for number, stranger in enumerate(strangers):
            with suppress(ConnectionError):
                stranger.sendall(STRANGE[number % len(STRANGE)])
        other = StarTransport(Ranks("127.0.0.1", port, 1, ("127.0.0.1",) * 2), 20.0)
        centre = waiting.result()
    assert (centre.size, other.size) == (2, 2)
    for each in (centre, other):
        each._close_all()
    for stranger in strangers:
        stranger.close()


def _connected(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 5.0)
        except ConnectionRefusedError:
            continue


def test_a_port_that_is_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortTaken, match="is taken"):
            StarTransport(Ranks("127.0.0.1", taken.getsockname()[1], 0, ("127.0.0.1",) * 2), 1.0)
