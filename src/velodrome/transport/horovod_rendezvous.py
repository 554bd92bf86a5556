"""The server at which Horovod's processes exchange their addresses: values by scope and key, over HTTP.

Horovod's own launcher starts one that listens on every interface; this one listens at the plan's address of worker 0,
for the engine and for scripts that use Horovod. Horovod knows no password, but every request that it makes begins with
the address that it is given: that one contains a key of the job. Standard library only.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from velodrome.errors import PortTaken
from velodrome.transport.sockets import derive

#: Seconds within which a request must be complete.
_REQUEST_SECONDS = 10.0
#: What a process publishes is an address for each of its peers.
_LARGEST = 1 << 20
#: Connections at the same time: beyond that the oldest goes, and who had it asks again.
_MOST = 512


def announce(host: str, port: int) -> None:
    """Let Horovod, when it starts in this process, ask the server at an address, with the job's key."""
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = f"{host}:{port}/{derive('horovod')}"
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)


class _Handler(BaseHTTPRequestHandler):
    """`PUT`, `GET` and `DELETE` of `/JOB'S KEY:PORT/SCOPE/KEY`: Horovod adds the port to the address of the server."""

    timeout = _REQUEST_SECONDS
    server: RendezvousServer

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        key = self.path.split("/")[1].partition(":")[0] if self.path.startswith("/") else ""
        if hmac.compare_digest(key.encode(errors="replace"), self.server.key.encode()):
            return True
        self._answer(HTTPStatus.FORBIDDEN)
        return False

    def do_GET(self) -> None:
        value = self.server.values.get(self.path)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > _LARGEST:
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        value = self.rfile.read(int(length))
        if len(value) < int(length):
            self._answer(HTTPStatus.REQUEST_TIMEOUT)
            return
        self.server.values[self.path] = value
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        # A process that has connected to all others deletes what it published; it may stay until the server ends.
        self._answer(HTTPStatus.OK)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a process asks many times until the others are there."""


class RendezvousServer(ThreadingHTTPServer):
    """Serves in a thread of its own until it is stopped."""

    daemon_threads = True
    #: Many processes ask at the same time.
    request_queue_size = 1024

    def __init__(self, host: str, port: int) -> None:
        #: By path; the operations of a dictionary are atomic.
        self.values: dict[str, bytes] = {}
        self.key = derive("horovod")
        #: In the order in which they came.
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"port {port} on {host} is taken: choose another one") from error
            raise
        self._thread = threading.Thread(target=self.serve_forever, name="horovod-rendezvous", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        # Without the look-up of the host's name that HTTPServer makes, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            if len(self._open) > _MOST:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a broken connection concerns only whoever had it."""

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
