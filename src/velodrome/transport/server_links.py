"""What workers and parameter servers send one another, and the workers' side of it.

A connection carries one request at a time, and each is answered. Numbers travel as they lie in memory, straight from
and into the buffers of both sides.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.world import Member
from velodrome.errors import PeerLost
from velodrome.transport.sockets import connect

Numbers = NDArray[Any]
PROTOCOL = "velodrome-servers-1"
_HEADER = struct.Struct(">BqddQ")
#: The answer in place of the number of a step: there is none left in this epoch.
NO_STEP = -1


class Kind(IntEnum):
    """What a worker asks of a server. Each request is answered."""

    #: The first message of worker 0: where parameters lie; the others wait for it.
    LAYOUT = 1
    #: One row of what the server keeps; the number says which.
    WRITE = 2
    READ = 3
    #: An epoch begins, with so many steps to hand out, or 0 if workers know their steps.
    BEGIN = 4
    #: The gradient of a step, and the learning rate; answered with weights as soon as the worker may begin another.
    PUSH = 5
    #: The same in two requests, where the norm of the whole gradient decides by what it is multiplied: the gradient,
    #: answered with the square of the norm of the sum's slice, and then rate and factor, answered with weights.
    SUM = 6
    APPLY = 7
    #: The worker makes no more steps in this epoch; answered once all have finished, with what the server counted.
    FINISH = 8
    LEAVE = 9


class Header(NamedTuple):
    """What stands before every payload."""

    kind: int
    #: A whole number and two others: what they mean depends on the kind.
    number: int
    first: float
    second: float
    #: Bytes of the payload.
    size: int


@dataclass
class Staleness:
    """What a server counted of an epoch's updates."""

    #: Updates by their age: how many others were applied between reading the weights and applying the update.
    ages: Counter[int] = field(default_factory=Counter)
    #: The most steps that a worker was ahead of the slowest when it began one.
    lead: int = 0


def prepare(link: socket.socket) -> None:
    # Without a limit: the supervisor notices processes that stop, and knows which one it is.
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send(
    link: socket.socket, kind: int, *, number: int = 0, first: float = 0.0, second: float = 0.0,
    payload: Numbers | None = None,
) -> None:
    link.sendall(_HEADER.pack(kind, number, first, second, 0 if payload is None else payload.nbytes))
    if payload is not None and payload.nbytes:
        link.sendall(payload.data.cast("B"))


def read_into(link: socket.socket, numbers: Numbers) -> None:
    if not numbers.nbytes:
        return
    view = numbers.data.cast("B")
    while view:
        count = link.recv_into(view)
        if not count:
            raise ConnectionError("the connection was closed")
        view = view[count:]


def read_exactly(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    read_into(link, np.frombuffer(data, np.uint8))
    return data


def read_header(link: socket.socket) -> Header:
    """The next header on a connection."""
    return Header(*_HEADER.unpack(read_exactly(link, _HEADER.size)))


_RETRY_SECONDS = 0.05


class ServerLinks:
    """A worker's connections to all servers, each of which has a slice of the flat buffers."""

    def __init__(self, rank: int, servers: Sequence[Member], seconds: float) -> None:
        """Connect within that time, or `PeerLost` that names the server."""
        deadline = time.monotonic() + seconds
        self._names = [str(server) for server in servers]
        self._links: list[socket.socket] = []
        #: Seconds that servers made this worker wait for others.
        self.waited = 0.0
        try:
            for server in servers:
                self._links.append(_connect(rank, server, deadline, seconds))
        except BaseException:
            self._close()
            raise

    def __len__(self) -> int:
        return len(self._links)

    def layout(self, place: int, description: Sequence[int]) -> None:
        """Describe to a server what it keeps."""
        self._call(place, Kind.LAYOUT, payload=np.array(description, np.int64))

    def write(self, place: int, row: int, numbers: Numbers) -> None:
        """Replace one row of a server."""
        self._call(place, Kind.WRITE, number=row, payload=numbers)

    def read(self, place: int, row: int, into: Numbers) -> None:
        """Read one row of a server."""
        self._send(place, Kind.READ, number=row)
        self._receive(place, into)

    def begin(self, steps: int) -> int:
        """Begin an epoch with so many steps to hand out, 0 if workers know theirs; the first one of this worker."""
        for place in range(len(self)):
            self._send(place, Kind.BEGIN, number=0 if place else steps)
        first, *_ = [self._receive(place) for place in range(len(self))]
        return first.number

    def push(self, gradients: Sequence[Numbers], rate: float, weights: Sequence[Numbers], *, last: bool) -> int:
        """Push a slice of a gradient to each server and receive weights; the number of the next step."""
        for place, gradient in enumerate(gradients):
            self._send(place, Kind.PUSH, number=last, first=rate, payload=gradient)
        return self._weights(weights)

    def squared_norm(self, gradients: Sequence[Numbers]) -> float:
        """Push the same; the square of the norm of the sum over all workers, which is not applied yet."""
        for place, gradient in enumerate(gradients):
            self._send(place, Kind.SUM, payload=gradient)
        return sum(self._receive(place).first for place in range(len(self)))

    def apply(self, rate: float, factor: float, weights: Sequence[Numbers]) -> None:
        """Have the servers make an update by so many times the last sum, and receive weights."""
        for place in range(len(self)):
            self._send(place, Kind.APPLY, first=rate, second=factor)
        self._weights(weights)

    def _weights(self, into: Sequence[Numbers]) -> int:
        answers = [self._receive(place, into[place]) for place in range(len(self))]
        self.waited += max(answer.first for answer in answers)
        return answers[0].number

    def finish(self) -> Staleness:
        """Wait until all workers have finished the epoch; the ages that the first server counted, and the largest lead
        that any allowed."""
        for place in range(len(self)):
            self._send(place, Kind.FINISH)
        tables = [self._table(place) for place in range(len(self))]
        ages = Counter({int(age): int(count) for age, count in tables[0][1:]})
        return Staleness(ages, max(int(table[0, 0]) for table in tables))

    def _table(self, place: int) -> Numbers:
        with self._named(place):
            header = read_header(self._links[place])
            return np.frombuffer(read_exactly(self._links[place], header.size), np.int64).reshape(-1, 2)

    def leave(self) -> None:
        """Leave all servers."""
        for place in range(len(self)):
            self._call(place, Kind.LEAVE)
        self._close()

    def _close(self) -> None:
        for link in self._links:
            link.close()

    def _call(self, place: int, kind: Kind, *, number: int = 0, payload: Numbers | None = None) -> None:
        self._send(place, kind, number=number, payload=payload)
        self._receive(place)

    def _send(self, place: int, kind: Kind, **parts: Any) -> None:
        with self._named(place):
            send(self._links[place], kind, **parts)

    def _receive(self, place: int, into: Numbers | None = None) -> Header:
        with self._named(place):
            answer = read_header(self._links[place])
            if into is not None:
                if answer.size != into.nbytes:
                    raise ConnectionError(f"{answer.size:,} bytes came instead of {into.nbytes:,}")
                read_into(self._links[place], into)
            return answer

    @contextmanager
    def _named(self, place: int) -> Iterator[None]:
        """Report a connection that fails as the loss of its server."""
        try:
            yield
        except OSError as error:
            raise PeerLost(f"{self._names[place]} is gone: {error.strerror or error}") from error


def _connect(rank: int, server: Member, deadline: float, seconds: float) -> socket.socket:
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerLost(f"{server} could not be reached within {seconds:g} s")
        try:
            link = connect((server.host, server.port), PROTOCOL, [str(rank)], left)
        except OSError:
            time.sleep(_RETRY_SECONDS)
            continue
        prepare(link)
        return link
