"""Only processes of the job are accepted, whatever others send."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from velodrome.errors import RunFailed
from velodrome.transport import sockets
from velodrome.transport.sockets import Accepted, AuthenticationError, JobListener, connect

pytestmark = pytest.mark.usefixtures("secret")
PROTOCOL = "tests-1"


class Open:
    """A listener that a thread serves, and whom it accepted."""

    def __init__(self) -> None:
        self.listener = JobListener(socket.create_server(("127.0.0.1", 0), backlog=1024), PROTOCOL)
        self.address = self.listener._listener.getsockname()
        self.accepted: list[Accepted] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.is_set():
            self.accepted += self.listener.accept(0.02)
            assert len(self.listener._pending) <= sockets.MOST_PENDING
        self.listener.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for one in self.accepted:
            one.link.close()


@pytest.fixture
def opened() -> Iterator[Open]:
    found = Open()
    yield found
    found.close()


def visit(opened: Open, data: bytes) -> socket.socket:
    link = socket.create_connection(opened.address, 20)
    link.sendall(data)
    return link


def closed(link: socket.socket) -> bool:
    """Whether the other side closes the connection, after its first line."""
    link.settimeout(20)
    with contextlib.suppress(ConnectionError):
        while link.recv(4096):
            pass
    return True


def test_who_has_the_secret_comes_in_and_talks_on_the_same_connection(opened: Open) -> None:
    with connect(opened.address, PROTOCOL, ["worker", "1"], 20) as link:
        link.sendall(b"more\n")
        while not opened.accepted:
            time.sleep(0.01)
        (one,) = opened.accepted
        assert one.words == ["worker", "1"]
        assert one.link.recv(100) == b"more\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\n", id="empty"),
        pytest.param(b"worker 1 0000 ffff\n", id="wrong-proof"),
        pytest.param(b"worker 1\nabort\ncmd=finalize\n", id="several-lines"),
        pytest.param(bytes(range(256)) * 8, id="bytes"),
        pytest.param(b"a" * 5_000_000, id="huge-line"),
        pytest.param("wörker 1 é ü\n".encode(), id="not-ascii"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n", id="http"),
    ],
)
def test_what_a_stranger_sends_ends_its_own_connection_only(opened: Open, data: bytes) -> None:
    with socket.create_connection(opened.address, 20) as link, contextlib.suppress(ConnectionError):
        link.sendall(data)
        assert closed(link)
    connect(opened.address, PROTOCOL, ["worker", "1"], 20).close()
    assert [one.words for one in opened.accepted] in ([], [["worker", "1"]])


def test_a_stranger_that_waits_for_an_answer_is_sent_away(opened: Open) -> None:
    with visit(opened, b"worker 1 0000 ffff\n") as link:
        assert closed(link)
    assert opened.accepted == []


def test_an_answer_is_worth_nothing_on_another_connection(opened: Open) -> None:
    """What somebody has overheard is no proof."""
    said: list[bytes] = []
    sendall = socket.socket.sendall

    class Overheard(socket.socket):
        def sendall(self, data: bytes, *rest: object) -> None:  # type: ignore[override]
            said.append(data)
            sendall(self, data)

    real = socket.socket
    socket.socket = Overheard  # type: ignore[misc]
    try:
        connect(opened.address, PROTOCOL, ["worker", "1"], 20).close()
    finally:
        socket.socket = real  # type: ignore[misc]
    (line,) = (data for data in said if data.startswith(b"worker 1 "))
    with visit(opened, line) as link:
        assert closed(link)
    assert len(opened.accepted) == 1
    assert b"of these tests" not in b"".join(said), "the secret itself is not sent"


def test_many_connections_that_say_nothing_do_not_keep_the_job_out(opened: Open) -> None:
    silent = [socket.create_connection(opened.address, 20) for _ in range(sockets.MOST_PENDING + 100)]
    connect(opened.address, PROTOCOL, ["worker", "1"], 20).close()
    for link in silent:
        link.close()


def test_who_takes_too_long_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.05)
    opened = Open()
    try:
        with visit(opened, b"wor") as link:
            assert closed(link)
    finally:
        opened.close()


def test_a_process_does_not_take_a_stranger_for_its_listener() -> None:
    for said in (b"", b"SSH-2.0-other\n", f"{PROTOCOL} 00\nwelcome 00\n".encode(), os.urandom(2000)):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer(listener: socket.socket = listener, said: bytes = said) -> None:
                link, _ = listener.accept()
                with link:
                    link.sendall(said)

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises((AuthenticationError, ConnectionError)):
                connect(listener.getsockname(), PROTOCOL, ["worker", "1"], 20)
            thread.join()


def test_a_door_that_sends_a_byte_now_and_then_does_not_hold_a_process_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def drip() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                while not over.wait(0.02):
                    link.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError):
            connect(listener.getsockname(), PROTOCOL, ["worker", "1"], 0.3)
        over.set()
        thread.join()


def test_without_a_secret_nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VELODROME_SECRET")
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, pytest.raises(RunFailed, match="VELODROME_SECRET is not set"):
        JobListener(listener, PROTOCOL)
