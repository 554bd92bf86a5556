"""The interface of all transports: collective operations on flat buffers between processes. No framework here.

Two transports are here, too: that of a job with one process, and a star, in which small buffers go through rank 0 over
plain TCP. The star is for engines whose framework cannot sum counts between processes, and whose environment has no
MPI; gradients are for MPI.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from velodrome.catalog.world import World
from velodrome.errors import PeerLost
from velodrome.transport.sockets import JobListener, connect, listen_at


class Transport(Protocol):
    """The connected processes of a job, numbered from 0; every call blocks until all of them have made it."""

    rank: int
    size: int
    #: In rank 0: what the last call of `shared` could not have, as part of a sentence; None if there was enough memory.
    not_shared: str | None = None

    def shared(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any] | None:
        """An array of zeros in memory that all processes share; None where they cannot share so much."""
        return None

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        """Replace a contiguous buffer by its sum over the processes."""

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        """Replace a contiguous buffer by the root's."""

    def barrier(self) -> None:
        """Wait until all processes are here."""

    def close(self) -> None:
        """Leave together; nothing may be called afterwards."""


class Alone(Transport):
    """The transport of a job with one process: every sum is already complete."""

    rank = 0
    size = 1

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        pass

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        pass

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job as one of them sees them: where they rendezvous, which one this is, the host of each."""

    host: str
    port: int
    rank: int
    hosts: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.hosts)

    def named(self, rank: int) -> str:
        return f"worker {rank} on {self.hosts[rank]}"

    @classmethod
    def of(cls, world: World) -> Ranks:
        """Rank 0 listens at its address of the plan, the others connect to it."""
        first = world.peers[0]
        return cls(first.host, first.port, world.me.rank, world.hosts)


_LENGTH = struct.Struct(">Q")
#: The first word on every connection, so that another program on the port is recognised.
_PROTOCOL = "velodrome-star-2"
#: What every rank receives when all are here.
_COMPLETE = b"complete"
_RETRY_SECONDS = 0.05
_NO_ONE_THERE = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET}


class StarTransport(Transport):
    """Rank 0 listens at its address of the plan; the others send to it and receive from it."""

    def __init__(self, ranks: Ranks, seconds: float) -> None:
        """Connect all ranks within that time, or `PeerLost` that names who is missing."""
        self.rank, self.size, self._ranks = ranks.rank, ranks.size, ranks
        deadline = time.monotonic() + seconds
        #: By rank: all others in rank 0, rank 0 in the others.
        self._peers: dict[int, socket.socket] = {}
        try:
            if self.rank == 0:
                self._accept(deadline, seconds)
            else:
                self._peers[0] = self._connect(deadline, seconds)
        except BaseException:
            self._close_all()
            raise

    def _accept(self, deadline: float, seconds: float) -> None:
        ranks = self._ranks
        listener = JobListener(listen_at(ranks.host, ranks.port, max(128, self.size)), _PROTOCOL)
        try:
            self._accept_all(listener, deadline, seconds)
        finally:
            listener.close()
        for connection in self._peers.values():
            connection.sendall(_COMPLETE)

    def _accept_all(self, listener: JobListener, deadline: float, seconds: float) -> None:
        """Wait until all others are here; a connection that is none of them is closed."""
        while missing := [rank for rank in range(1, self.size) if rank not in self._peers]:
            if time.monotonic() >= deadline:
                names = ", ".join(map(self._ranks.named, missing))
                raise PeerLost(f"{names} did not connect within {seconds:g} s")
            for connection, words in listener.accept(max(deadline - time.monotonic(), 0.001)):
                rank = int(words[0]) if len(words) == 1 and words[0].isdecimal() else 0
                if rank in missing and rank not in self._peers:
                    _prepare(connection)
                    self._peers[rank] = connection
                else:
                    connection.close()

    def _connect(self, deadline: float, seconds: float) -> socket.socket:
        ranks = self._ranks
        while True:
            connection = None
            try:
                left = max(deadline - time.monotonic(), 0.001)
                connection = connect((ranks.host, ranks.port), _PROTOCOL, [str(self.rank)], left)
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                if _received(connection, len(_COMPLETE)) == _COMPLETE:
                    _prepare(connection)
                    return connection
                connection.close()
            except OSError as error:
                if connection is not None:
                    connection.close()
                if error.errno not in _NO_ONE_THERE and not isinstance(error, TimeoutError | ConnectionError):
                    raise
            if time.monotonic() >= deadline:
                raise PeerLost(f"{ranks.named(0)} could not be reached within {seconds:g} s, or waits for another rank")
            time.sleep(_RETRY_SECONDS)

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        if self.rank:
            self._send(0, buffer.tobytes())
            self._fill(buffer, self._receive(0))
            return
        for rank in range(1, self.size):  # in their order, so that sums are the same every time
            buffer += np.frombuffer(self._receive(rank), buffer.dtype).reshape(buffer.shape)
        for rank in range(1, self.size):
            self._send(rank, buffer.tobytes())

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        if root != 0:
            raise ValueError("a star broadcasts from its centre, rank 0")
        if self.rank:
            self._fill(buffer, self._receive(0))
        else:
            for rank in range(1, self.size):
                self._send(rank, buffer.tobytes())

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1))

    def close(self) -> None:
        self.barrier()
        self._close_all()

    def _close_all(self) -> None:
        for connection in self._peers.values():
            connection.close()

    @staticmethod
    def _fill(buffer: NDArray[Any], data: bytes) -> None:
        buffer[...] = np.frombuffer(data, buffer.dtype).reshape(buffer.shape)

    def _send(self, rank: int, data: bytes) -> None:
        try:
            self._peers[rank].sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise PeerLost(f"{self._ranks.named(rank)} is gone: {error.strerror or error}") from error

    def _receive(self, rank: int) -> bytes:
        try:
            (length,) = _LENGTH.unpack(_received(self._peers[rank], _LENGTH.size))
            return _received(self._peers[rank], length)
        except OSError as error:
            raise PeerLost(f"{self._ranks.named(rank)} is gone: {error.strerror or error}") from error


def _prepare(connection: socket.socket) -> None:
    # Without a limit: the supervisor notices ranks that stop, and knows which one it is.
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _received(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return bytes(data)
