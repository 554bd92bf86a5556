"""Runs an application on an address: checks it, prints it, opens the browser, limits connections, and ends cleanly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Timer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from starlette.applications import Starlette

from velodrome.errors import BadRequest
from velodrome.web.security import Security, is_loopback

if TYPE_CHECKING:
    import uvicorn

    from velodrome.web.processes import Siblings


#: Seconds that open connections have to end after Ctrl-C; live ones are closed at once.
_GRACE_SECONDS = 2


def check_host(host: str, *, allow_remote: bool) -> str:
    """Refuse an address that other machines can reach, unless that was asked for."""
    if not is_loopback(host) and not allow_remote:
        raise BadRequest(f"--host {host!r} can be reached from other machines: give --allow-remote as well, and a "
                         "token is printed that every visitor needs")
    return host


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket on this address; port 0 takes a free one. A `shared` one can be joined by further processes of ours."""
    if not 0 <= port <= 65535:
        raise BadRequest(f"--port {port!r} is not a port: choose one from 0 (any free one) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise BadRequest(f"--host {host!r} is not an address of this machine: {error.strerror or error}") from None
    try:
        if shared and port:
            _bound(family, kind, protocol, address).close()  # a shared port would be taken from another server of ours
        return _bound(family, kind, protocol, address, shared=shared)
    except OSError as error:
        raise BadRequest(
            f"--port {port!r} on {host}: {error.strerror}; choose another, or 0 for any free one"
        ) from None


def _bound(family: int, kind: int, protocol: int, address: Any, *, shared: bool = False) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket, security: Security) -> str:
    """What to open in a browser."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = socket.gethostname()
    token = f"/?{urlencode({'token': security.token})}" if security.token else ""
    return f"http://{shown}:{port}{token}"


def serve(
    app: Starlette, listener: socket.socket, *, say: Callable[[str], None], browser: bool = True
) -> None:
    """Serve until Ctrl-C or SIGTERM. `say` is called with the address once requests are answered."""
    import uvicorn

    address = address_of(listener, app.state.security)

    siblings: Siblings | None = getattr(app.state, "siblings", None)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                if siblings is not None:
                    siblings.begin(listener, app.state.security)
                say(address)
                if browser:
                    Timer(0.2, _open, [address]).start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.closing.set()
            if siblings is not None:
                await siblings.end()
            await super().shutdown(sockets)

    Server(configured(app)).run(sockets=[listener])  # raises the signal that ended it again


def configured(app: Starlette) -> uvicorn.Config:
    """How every server of ours answers."""
    import uvicorn

    return uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_SECONDS,
        limit_concurrency=512, timeout_keep_alive=15, h11_max_incomplete_event_size=32 << 10, ws="none",
        proxy_headers=False, lifespan="on", http=limited_protocol(),
    )


def _open(address: str) -> None:
    import webbrowser

    with suppress(webbrowser.Error, OSError):
        webbrowser.open(address)


#: Bytes of a request's line and headers, and seconds to send them.
MOST_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
_HEAD_END = b"\r\n\r\n"
_SENTENCE = b"The headers of the request are too large.\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SENTENCE), _SENTENCE)
)


class Joined:
    """A transport that sends the head and the body of an answer together, which uvicorn writes one after the other.

    Each send is a system call here and wakes up the reader there: two of them take longer than the answer of a small
    model. What nothing follows at once is sent when the loop comes round.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._held = transport, loop, b""

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        else:
            self._held = bytes(data)
            self._loop.call_soon(self._send)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def limited_protocol(most_bytes: int = MOST_HEAD_BYTES, seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol
    # The parser in Python has a limit of its own (`h11_max_incomplete_event_size`), and no such calls.
    in_c = hasattr(base, "on_headers_complete")

    class Limited(base):  # type: ignore[misc]
        _in_head, _head_bytes, _last = in_c, 0, b""
        _give_up: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Joined(transport, self.loop))
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait_no_more()
            super().connection_lost(exc)

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head, self._head_bytes, self._last = True, 0, b""

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                end = (self._last + data).find(_HEAD_END)  # which may have come in two parts
                self._head_bytes += len(data) if end < 0 else end
                self._last = data[-3:] if end < 0 else b""
                if self._head_bytes > most_bytes:
                    self.transport.write(_TOO_LARGE)
                    self.transport.close()
                    return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._wait_no_more()  # a request is being answered
            elif self._give_up is None:
                self._wait()

        def _wait(self) -> None:
            self._give_up = self.loop.call_later(seconds, self.transport.close)

        def _wait_no_more(self) -> None:
            if self._give_up is not None:
                self._give_up.cancel()
                self._give_up = None

    return cast(type[asyncio.Protocol], Limited)
