"""The stream to a pod: whatever happens to the connection, every byte arrives once and in order, in both directions.

The relay is the real one, in a child process; only the API server is not there.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from velodrome.clusters.k8s import channel as channels
from velodrome.clusters.k8s.api import STDIN, STDOUT, ApiError, NoAnswer
from velodrome.clusters.k8s.channel import PodChannel
from velodrome.clusters.remote.agent import Files

pytestmark = pytest.mark.integration


class Stream:
    """A program in a "container", as a stream of websocket messages."""

    def __init__(self, words: list[str], breaks_after: float) -> None:
        self._popen = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._until = time.monotonic() + breaks_after
        threading.Timer(breaks_after, self._popen.kill).start()

    def settimeout(self, seconds: float) -> None:
        pass

    def recv_data(self) -> tuple[int, bytes]:
        assert self._popen.stdout is not None
        data = os.read(self._popen.stdout.fileno(), random.randint(1, 20_000))
        return (websocket.ABNF.OPCODE_BINARY, bytes([STDOUT]) + data) if data else (websocket.ABNF.OPCODE_CLOSE, b"")

    def send_binary(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        assert data[0] == STDIN
        self._popen.stdin.write(data[1:])
        self._popen.stdin.flush()

    def shutdown(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def close(self, timeout: float = 0) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait(10)


class Server:
    """An API server that starts programs, and breaks streams to them."""

    def __init__(self, lasts: Callable[[], float]) -> None:
        self.lasts, self.streams, self.down = lasts, 0, False

    def exec(self, pod: str, container: str, command: list[str]) -> Any:
        if self.down:
            raise NoAnswer("https://api", "Connection refused")
        self.streams += 1
        return Stream(command, self.lasts())


@pytest.fixture
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mail"
    monkeypatch.setattr(channels, "MAIL", str(folder))
    monkeypatch.setattr(channels, "_AGAIN_SECONDS", 0.05)
    return folder


@pytest.fixture
def opened() -> Iterator[list[PodChannel]]:
    made: list[PodChannel] = []
    yield made
    for channel in made:
        channel.close()


def open_channel(server: Any, ended: Callable[[], str | None] = lambda: None, patience: float = 30.0) -> PodChannel:
    return PodChannel(server, lambda: "pod", sys.executable, ended, patience)


def test_nothing_is_lost_or_doubled_when_the_stream_breaks_again_and_again(
    mail: Path, opened: list[PodChannel]
) -> None:
    server = Server(lambda: random.uniform(0.5, 1.0))
    channel = open_channel(server)
    opened.append(channel)
    agent = Files(mail / "in", mail / "out", poll=0.01)
    to_pod, from_pod = secrets.token_bytes(600_000), secrets.token_bytes(600_000)

    def write(target: Callable[[bytes], None], data: bytes) -> None:
        for begin in range(0, len(data), 7_000):
            target(data[begin : begin + 7_000])
            time.sleep(0.04)

    got: dict[str, bytearray] = {"pod": bytearray(), "here": bytearray()}

    def read(name: str, source: Callable[[], bytes], length: int) -> None:
        while len(got[name]) < length and (data := source()):
            got[name] += data

    threads = [
        threading.Thread(target=read, args=("pod", agent.read, len(to_pod)), daemon=True),
        threading.Thread(target=read, args=("here", channel.read, len(from_pod)), daemon=True),
        threading.Thread(target=write, args=(agent.write, from_pod), daemon=True),
        threading.Thread(target=write, args=(channel.write, to_pod), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert bytes(got["pod"]) == to_pod
    assert bytes(got["here"]) == from_pod
    assert server.streams >= 4, "the stream broke several times"


def test_a_second_controller_reads_everything_again_and_appends_whole_messages(
    mail: Path, opened: list[PodChannel]
) -> None:
    first = open_channel(Server(lambda: 60.0))
    agent = Files(mail / "in", mail / "out", poll=0.01)
    agent.write(b"before")
    first.write(b"one,")
    assert first.read() == b"before"
    assert agent.read() == b"one,"
    first._closed = True  # killed: it says nothing to the pod
    first._lose()
    second = open_channel(Server(lambda: 60.0))
    opened.append(second)
    second.write(b"two")
    assert second.read() == b"before"
    assert agent.read() == b"two"


def test_an_api_server_that_is_down_for_a_while_is_waited_for(mail: Path, opened: list[PodChannel]) -> None:
    server = Server(lambda: 60.0)
    server.down = True
    channel = open_channel(server)
    opened.append(channel)
    channel.write(b"early")
    agent = Files(mail / "in", mail / "out", poll=0.01)
    agent.write(b"output")
    threading.Timer(0.5, lambda: setattr(server, "down", False)).start()
    assert channel.read() == b"output"
    assert agent.read() == b"early"


def test_one_that_stays_down_ends_the_stream_with_the_reason(mail: Path) -> None:
    server = Server(lambda: 60.0)
    server.down = True
    channel = open_channel(server, patience=0.3)
    assert channel.read() == b""
    assert channel.end_reason() == ("cannot be reached through the API server: the API server https://api does not "
                                    "answer: Connection refused")


def test_a_pod_that_is_over_ends_the_stream_with_its_reason(mail: Path) -> None:
    class Gone(Server):
        def exec(self, pod: str, container: str, command: list[str]) -> Any:
            raise ApiError(404, 'pods "x" not found', "start a program")

    channel = open_channel(Gone(lambda: 1.0), ended=lambda: "is over: it was evicted")
    assert channel.read() == b""
    assert channel.end_reason() == "is over: it was evicted"


def test_closing_ends_the_agent(mail: Path) -> None:
    channel = open_channel(Server(lambda: 60.0))
    agent = Files(mail / "in", mail / "out", poll=0.01)
    agent.write(b"x")
    channel.write(b"y")
    assert channel.read() == b"x"
    assert agent.read() == b"y"
    ended = threading.Thread(target=agent.read, daemon=True)
    ended.start()
    channel.close()
    ended.join(10)
    assert not ended.is_alive(), "its inbox is gone"
    assert not (mail / "in").exists()
    with pytest.raises(BrokenPipeError):
        channel.write(b"z")
