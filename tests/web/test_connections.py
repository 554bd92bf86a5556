"""Connections over real sockets: heads of requests end in time and in size, and nothing else is cut off."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from velodrome.web.server import Joined, limited_protocol

SECONDS = 30
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def slow(request: Request) -> Response:
    await asyncio.sleep(1.5)
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def refuse(request: Request) -> Response:
    return PlainTextResponse("too large", 413)


def answer_to(talk: Talk, http: str) -> bytes:
    """What a server with half a second for a head and at most 10,000 bytes of it sends in a conversation."""
    async def run() -> bytes:
        app = Starlette(routes=[Route("/", slow, methods=["POST"]), Route("/refuse", refuse, methods=["POST"])])
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            server = uvicorn.Server(uvicorn.Config(app, http=limited_protocol(10_000, 0.5), log_level="critical"))
            task = asyncio.create_task(server.serve([listener]))
            try:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                return await asyncio.wait_for(talk(reader, writer), SECONDS)
            finally:
                server.should_exit = True
                await asyncio.wait_for(task, SECONDS)

    with pytest.MonkeyPatch.context() as patch:
        from uvicorn.protocols.http import auto, h11_impl, httptools_impl

        kinds = {"in C": httptools_impl.HttpToolsProtocol, "in Python": h11_impl.H11Protocol}
        patch.setattr(auto, "AutoHTTPProtocol", kinds[http])
        return asyncio.run(run())


@pytest.fixture(params=["in C", "in Python"])
def http(request: pytest.FixtureRequest) -> str:
    """How requests are parsed: httptools is part of `velodrome[serve]` only."""
    return str(request.param)


@pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nHost: a\r\n"])
def test_a_head_that_does_not_end_is_given_up(http: str, begun: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(begun)
        return await reader.read()

    assert b"200" not in answer_to(talk, http)


def test_a_head_without_end_is_refused(http: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST / HTTP/1.1\r\n")
        try:
            for number in range(2000):
                writer.write(b"X-%d: %s\r\n" % (number, b"a" * 1000))
                await writer.drain()
            return await reader.read()
        except OSError:  # closed while we wrote
            return b"HTTP/1.1 4"

    assert answer_to(talk, http).startswith(b"HTTP/1.1 4")


def test_a_large_head_is_refused_though_it_comes_at_once(http: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /refuse HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 10_000 + b"\r\n")
        try:
            return await reader.read()
        except OSError:
            return b"HTTP/1.1 4"

    got = answer_to(talk, http)
    assert got.startswith(b"HTTP/1.1 4")
    assert b"too large\n" not in got or b" 431 " in got


def test_a_body_behind_a_head_that_came_in_two_parts_is_no_head(http: str) -> None:
    """Whatever the place at which a connection was cut."""
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        head = b"POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n"
        for cut in (1, 2, 3, 4):
            writer.write(head[:-cut])
            await asyncio.sleep(0.05)
            writer.write(head[len(head) - cut:] + b"a" * 50_000)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 413 " in answer
            assert await reader.readexactly(9) == b"too large"
        return b"all"

    assert answer_to(talk, http) == b"all"


def test_an_answer_may_take_longer_than_a_head(http: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        body = b"a" * 200_000
        for _ in range(2):  # the second one after the connection was idle
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:100])
            await asyncio.sleep(1)
            writer.write(body[100:])
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            assert await reader.readexactly(12) == b"200000 bytes"
        return b"both"

    assert answer_to(talk, http) == b"both"


def test_who_is_refused_early_reads_why(http: str) -> None:
    """The rest of a body that comes after the answer is no head, however large."""
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        for _ in range(20):
            writer.write(b"a" * 10_000)
            await writer.drain()
        return head

    assert b" 413 " in answer_to(talk, http)


class Recorded(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": "them"})
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.sent.append(b"closed")


def test_head_and_body_are_sent_together_and_nothing_is_kept_back() -> None:
    async def talk() -> list[list[bytes]]:
        plain = Recorded()
        joined = Joined(plain, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        together = list(plain.sent)
        joined.write(b"a sign of life")
        await asyncio.sleep(0)
        alone = list(plain.sent)
        joined.write(b"the last")
        joined.close()
        await asyncio.sleep(0)
        assert joined.get_extra_info("peername") == "them"
        return [together, alone[1:], plain.sent[2:]]

    assert asyncio.run(talk()) == [[b"head body"], [b"a sign of life"], [b"the last", b"closed"]]
