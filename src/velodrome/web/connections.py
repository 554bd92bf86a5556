"""Connections that must say what they want, and get an answer in one piece: the head of a request is limited in bytes
and in time.

uvicorn keeps a connection open that never asks for anything, and reads heads of any size if it parses them in C.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

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
