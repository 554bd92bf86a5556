"""The stream to a pod's agent: through the API server, which may be restarted, to files in the pod.

A program in the pod (`relay`) serves the agent's files. When the stream to it breaks, it is started again and continues
at the position that was reached, in both directions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING

from velodrome.clusters.k8s import WORK
from velodrome.clusters.k8s.api import STDERR, STDIN, STDOUT, Api
from velodrome.clusters.k8s.manifests import CONTAINER
from velodrome.clusters.k8s.relay import DATA, END, LENGTH, WRITE, Messages, message
from velodrome.errors import VelodromeError

if TYPE_CHECKING:
    import websocket

#: The folder of a pod with the files of its agent.
MAIL = f"{WORK}/mail"
#: An agent is heard every second: a stream that is silent for longer is broken, whatever its connection seems to be.
_SILENT_SECONDS = 10.0
_AGAIN_SECONDS = 0.5
_LARGEST_WRITE = 1 << 20


def relay_words(python: str, position: int) -> list[str]:
    """The command line of the relay in a pod."""
    source = (resources.files("velodrome.clusters.k8s") / "relay.py").read_text(encoding="utf-8")
    return [python, "-I", "-S", "-c", source, MAIL, str(position)]


class PodChannel:
    """A stream to the agent of a pod. `read` is called by one thread and `write` by another."""

    def __init__(
        self, api: Api, pod: Callable[[], str | None], python: str, ended: Callable[[], str | None], patience: float
    ) -> None:
        """`pod` is the pod's own name now, `ended` why nothing more will come, None while something may. After
        `patience` seconds without a stream it counts as lost."""
        self._api, self._pod, self._python, self._ended, self._patience = api, pod, python, ended, patience
        self._stream: websocket.WebSocket | None = None
        self._messages = Messages()
        #: How much of the outbox has come.
        self._received = 0
        #: Where what is written next belongs in the inbox, and what the relay has not confirmed yet.
        self._position: int | None = None
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        #: Whether the relay has said how long the inbox is.
        self._synchronized = False
        self._lock = threading.Lock()
        self._closed = False
        self._reason = "the stream ended"
        self._connected_at = time.monotonic()
        self._errors = b""

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none when the pod's agent has ended."""
        while not self._closed:
            if self._stream is None and not self._connect():
                return b""
            if data := self._receive():
                return data
        return b""

    def _connect(self) -> bool:
        """Start a relay; whether there is one now."""
        while not self._closed:
            try:
                if (pod := self._pod()) is None:
                    raise VelodromeError("its pod is not there")
                stream = self._api.exec(pod, CONTAINER, relay_words(self._python, self._received))
            except VelodromeError as error:
                self._reason = f"cannot be reached through the API server: {error}"
                if self._ended() is not None or time.monotonic() - self._connected_at > self._patience:
                    return False
                time.sleep(_AGAIN_SECONDS)
                continue
            stream.settimeout(_SILENT_SECONDS)
            self._messages, self._errors, self._connected_at = Messages(), b"", time.monotonic()
            with self._lock:
                self._stream = stream
            return not self._closed
        return False

    def _receive(self) -> bytes:
        """The bytes of the outbox in the next message of the stream."""
        import websocket

        stream = self._stream
        assert stream is not None, "a stream was opened"
        try:
            operation, data = stream.recv_data()
        except (websocket.WebSocketException, OSError, ValueError) as error:
            operation, data = websocket.ABNF.OPCODE_CLOSE, b""
            self._errors = self._errors or str(error).encode()
        if operation == websocket.ABNF.OPCODE_CLOSE:
            self._lose()
            return b""
        if data[:1] == bytes([STDERR]):
            self._errors = (self._errors + data[1:])[-4000:]
        if data[:1] != bytes([STDOUT]):
            return b""
        self._connected_at = time.monotonic()
        came = b""
        for kind, position, body in self._messages.feed(data[1:]):
            if kind == LENGTH:
                self._confirm(position)
            elif kind == DATA and position == self._received:
                self._received += len(body)
                came += body
        return came

    def _lose(self) -> None:
        """Forget a stream that broke; what it did not confirm is sent again by the next one."""
        with self._lock:
            stream, self._stream, self._synchronized = self._stream, None, False
        if stream is not None:
            with suppress(Exception):
                stream.shutdown()  # type: ignore[no-untyped-call]
        words = self._errors.decode(errors="replace").strip().rpartition("\n")[2]
        self._reason = f"ended its agent{f': {words}' if words else ''}"
        if not self._closed:
            time.sleep(_AGAIN_SECONDS / 5)

    def _confirm(self, length: int) -> None:
        with self._lock:
            if self._position is None:  # of an agent that another command has used, the inbox is not empty
                self._position = length
                self._unconfirmed = deque(self._numbered(length))
            while self._unconfirmed and self._unconfirmed[0][0] + len(self._unconfirmed[0][1]) <= length:
                self._unconfirmed.popleft()
            if not self._synchronized:
                self._synchronized = True
                for position, data in self._unconfirmed:
                    self._send(message(WRITE, position, data))

    def _numbered(self, base: int) -> list[tuple[int, bytes]]:
        """What was written before the position of the first byte was known."""
        numbered = []
        for _, data in self._unconfirmed:
            numbered.append((base, data))
            base += len(data)
        self._position = base
        return numbered

    def write(self, data: bytes) -> None:
        """Send bytes to the agent, now or when there is a stream again."""
        if self._closed:
            raise BrokenPipeError("the channel is closed")
        for begin in range(0, len(data), _LARGEST_WRITE):
            part = data[begin : begin + _LARGEST_WRITE]
            with self._lock:
                self._unconfirmed.append((self._position or 0, part))
                if self._position is not None:
                    position = self._position
                    self._position += len(part)
                    if self._synchronized:
                        self._send(message(WRITE, position, part))

    def _send(self, data: bytes) -> None:
        """Send to the relay; a stream that broke is noticed by the reader."""
        if self._stream is not None:
            with suppress(Exception):
                self._stream.send_binary(bytes([STDIN]) + data)

    def end_reason(self) -> str:
        over = self._ended()
        return over if over is not None else self._reason

    def close(self) -> None:
        """End the agent, if it can be reached, and the stream."""
        with self._lock:
            self._send(message(END, 0))
            self._closed, stream = True, self._stream
        if stream is not None:
            with suppress(Exception):
                stream.close(timeout=1)
