"""The server at which Horovod's processes exchange their addresses: values by scope and key, over HTTP.

Horovod's own launcher starts one that listens on every interface; this one listens at the plan's address of worker 0,
for the engine and for scripts that use Horovod. Standard library only.
"""

from __future__ import annotations

import errno
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from velodrome.errors import PortTaken

#: Seconds within which a request must be complete.
_REQUEST_SECONDS = 10.0
#: What a process publishes is an address for each of its peers.
_LARGEST = 1 << 20


class _Handler(BaseHTTPRequestHandler):
    """`PUT`, `GET` and `DELETE` of `/SCOPE/KEY`."""

    timeout = _REQUEST_SECONDS
    server: RendezvousServer

    def do_GET(self) -> None:
        value = self.server.values.get(self.path)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LARGEST:
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        value = self.rfile.read(int(length))
        if len(value) < int(length):
            self._answer(HTTPStatus.REQUEST_TIMEOUT)
            return
        self.server.values[self.path] = value
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        # A process that has connected to all others says so; what it published may go when the server does.
        self._answer(HTTPStatus.OK)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a process asks many times until the others are there."""


class RendezvousServer(ThreadingHTTPServer):
    """Serves in a thread of its own until it is stopped."""

    daemon_threads = True
    #: Many processes ask at the same time.
    request_queue_size = 1024

    def __init__(self, host: str, port: int) -> None:
        #: By path; the operations of a dictionary are atomic.
        self.values: dict[str, bytes] = {}
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"port {port} of {host} is in use") from error
            raise
        self._thread = threading.Thread(target=self.serve_forever, name="horovod-rendezvous", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        # Without the look-up of the host's name that HTTPServer makes, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
