"""Sockets between the processes of a job: both sides of a connection prove that they have the job's secret, which is
never sent. Importing this imports the standard library only.

The listener begins with a nonce; the other side answers with what it is, a nonce of its own, and an HMAC of both nonces
under the secret; the listener proves the same in return.

The network interfaces behind addresses of the plan are looked up here, too, so that a transport listens there and
nowhere else.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from velodrome.errors import PortTaken, RunFailed
from velodrome.variables import SECRET

#: How long authentication may take, and how many connections may be pending: beyond that the oldest is dropped.
HANDSHAKE_SECONDS = 10.0
MOST_PENDING = 256
#: Bytes of the longest line of a proof.
_LINE = 512


class AuthenticationError(ConnectionError):
    """Whoever listens there is not a process of the job."""


class Accepted(NamedTuple):
    """An authenticated connection, and what the other side says it is."""

    link: socket.socket
    words: list[str]


def derive(*parts: str) -> str:
    """A proof that this process has the job's secret, for these parts alone."""
    key = os.environ.get(SECRET, "")
    if not key:
        raise RunFailed(f"{SECRET} is not set, but the processes of a job need it to authenticate one another: let a "
                        "launcher start them, or paste the whole line that `velodrome plan` printed")
    return hmac.new(key.encode(), " ".join(parts).encode(), hashlib.sha256).hexdigest()


@dataclass
class _Pending:
    """A connection that is not authenticated yet."""

    nonce: str
    until: float
    said: bytes = b""


class JobListener:
    """A listening socket that accepts processes of the job alone, whatever others send, and however many they are."""

    def __init__(self, listener: socket.socket, protocol: str) -> None:
        derive()  # without a secret it would not even open
        listener.setblocking(False)
        self._listener, self._protocol = listener, protocol
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        #: In the order in which they came.
        self._pending: dict[socket.socket, _Pending] = {}

    def fileno(self) -> int:
        """Readable when `accept` has something to do."""
        return self._selector.fileno()

    def accept(self, seconds: float | None) -> list[Accepted]:
        """The connections authenticated since the last call; waits at most `seconds` until something happens."""
        accepted = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pending:
                accepted += self._read(key.fileobj)
        now = time.monotonic()
        for link in [link for link, pending in self._pending.items() if pending.until < now]:
            self._drop(link)
        return accepted

    def close(self) -> None:
        """Stop listening, and close connections that are not authenticated."""
        for link in list(self._pending):
            self._drop(link)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left, for example
            self._drop_oldest()
            return
        if len(self._pending) >= MOST_PENDING:
            self._drop_oldest()
        link.setblocking(False)
        pending = _Pending(secrets.token_hex(16), time.monotonic() + HANDSHAKE_SECONDS)
        self._pending[link] = pending
        self._selector.register(link, selectors.EVENT_READ)
        try:
            link.sendall(f"{self._protocol} {pending.nonce}\n".encode())
        except OSError:
            self._drop(link)

    def _read(self, link: socket.socket) -> list[Accepted]:
        pending = self._pending[link]
        try:
            data = link.recv(_LINE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        pending.said += data
        complete = pending.said.endswith(b"\n")
        if data and not complete and b"\n" not in pending.said and len(pending.said) < _LINE:
            return []
        words = self._verified(pending) if data and complete else None
        if words is None:
            self._drop(link)
            return []
        *words, nonce = words
        self._forget(link)
        link.settimeout(HANDSHAKE_SECONDS)
        with suppress(OSError):  # a connection that is gone again is noticed by whoever gets it
            link.sendall(f"welcome {derive('listener', self._protocol, pending.nonce, nonce)}\n".encode())
        return [Accepted(link, words)]

    def _verified(self, pending: _Pending) -> list[str] | None:
        """What a connection says it is, and its nonce; None if its proof is wrong."""
        *words, proof = pending.said.decode(errors="replace").split() or [""]
        wanted = derive("visitor", self._protocol, pending.nonce, *words)
        return words if words and hmac.compare_digest(proof.encode(), wanted.encode()) else None

    def _drop_oldest(self) -> None:
        for link in list(self._pending)[:1]:
            self._drop(link)

    def _drop(self, link: socket.socket) -> None:
        self._forget(link)
        link.close()

    def _forget(self, link: socket.socket) -> None:
        del self._pending[link]
        self._selector.unregister(link)


def connect(address: tuple[str, int], protocol: str, words: Sequence[str], seconds: float) -> socket.socket:
    """A connection to a `JobListener` of this job, within `seconds`; `AuthenticationError` if it belongs to another."""
    deadline = time.monotonic() + seconds
    link = socket.create_connection(address, timeout=seconds)
    try:
        match read_line(link, deadline).split():
            case [said, theirs] if said == protocol:
                pass
            case _:
                raise AuthenticationError("another program listens there")
        ours = secrets.token_hex(16)
        proof = derive("visitor", protocol, theirs, *words, ours)
        link.sendall(f"{' '.join(words)} {ours} {proof}\n".encode())
        welcome = f"welcome {derive('listener', protocol, theirs, ours)}\n"
        if not hmac.compare_digest(read_line(link, deadline).encode(), welcome.encode()):
            raise AuthenticationError("another job's process listens there")
        link.settimeout(None)
    except BaseException:
        link.close()
        raise
    return link


def read_line(link: socket.socket, deadline: float | None = None) -> str:
    """One line, byte by byte: what follows it is the next reader's. Without its end if the connection ends, or if it is
    longer than those of a job. With a deadline it waits no longer, however slowly bytes come."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            link.settimeout(left)
        byte = link.recv(1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


def is_address(host: str) -> bool:
    """Whether a host is given as an address and not by a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def listening_address(host: str) -> str:
    """What to listen at so that the others reach this process at its host of the plan and, where that is an address of
    this machine, nowhere else; a name may have another address here than the others know. Empty for all interfaces."""
    return host if is_address(host) and interface_of(host) else ""


def interface_of(host: str) -> str | None:
    """The network interface of this machine that holds the address of a host, if any does."""
    import psutil  # the server of a rendezvous, which needs none of it, is up sooner without

    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            # All of 127.0.0.0/8 is the loopback's, which shows one address only.
            if entry.address == address or (address.startswith("127.") and entry.address == "127.0.0.1"):
                return str(name)
    return None


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which another one is reached; nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return host


def listen_at(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket of worker 0 on its address of the plan, and on no other one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken: choose another one") from error
        raise RunFailed(
            f"cannot listen on {host}:{port} ({error.strerror or error}): worker 0 must run on {host!r}"
        ) from error
