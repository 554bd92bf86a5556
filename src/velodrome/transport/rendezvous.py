"""How a rank comes to the meeting point: rank 0 opens it, everybody says hello and waits until all are there."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from velodrome.errors import PeerLost, PortTaken, RunFailed
from velodrome.offers.world import World
from velodrome.transport.pmi_server import GREETING, LATE_SECONDS

_RETRY_SECONDS = 0.05


@dataclass(frozen=True)
class Place:
    """What the plan says about the ranks: where they meet, which one this is and where all of them are."""

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
    def of(cls, world: World) -> Place:
        """Rank 0 listens at its address of the plan, the others connect to it."""
        first = world.peers[0]
        return cls(first.host, first.port, world.me.rank, world.hosts)


@dataclass
class Met:
    """A rank that has met all the others."""

    #: What MPICH talks over.
    pmi: socket.socket
    #: Says who is lost, for as long as the job lives.
    life: socket.socket
    #: The job's name to MPICH.
    name: str
    #: The meeting point itself, in rank 0.
    server: subprocess.Popen[bytes] | None = None


def meet(place: Place, seconds: float) -> Met:
    """Come to the meeting point and wait there until all ranks have come, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    server = _open(place, seconds) if place.rank == 0 else None
    try:
        pmi = _come(place, "pmi", deadline, seconds)
        life = _come(place, "life", deadline, seconds)
        return Met(pmi, life, _wait_for_all(place, life, deadline, seconds), server)
    except BaseException:
        if server is not None:
            leave(server, LATE_SECONDS + 1)  # it still tells the others
        raise


def leave(server: subprocess.Popen[bytes], seconds: float) -> None:
    """Let the meeting point end by itself, and end it if it does not."""
    try:
        server.wait(seconds)
    except subprocess.TimeoutExpired:
        server.terminate()
        server.wait()


def _open(place: Place, seconds: float) -> subprocess.Popen[bytes]:
    try:
        family, _, _, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=max(128, 2 * place.size))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {place.port} on {place.host} is taken: choose another one") from error
        raise RunFailed(
            f"cannot listen on {place.host}:{place.port} ({error.strerror or error}): worker 0 must run on "
            f"{place.host!r}"
        ) from error
    command = [sys.executable, "-m", "velodrome.transport.pmi_server", "--listener", str(listener.fileno())]
    command += ["--hosts", ",".join(place.hosts), "--seconds", str(seconds)]
    with listener:
        # Not our output: a reader of it must not wait for the meeting point.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )


def _come(place: Place, kind: str, deadline: float, seconds: float) -> socket.socket:
    while True:
        try:
            link = socket.create_connection((place.host, place.port), timeout=max(0.1, deadline - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise RunFailed(
                    f"{place.named(0)} did not come: nobody answered at {place.host}:{place.port} within {seconds:g} s "
                    f"({error.strerror or error})"
                ) from error
            time.sleep(_RETRY_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.sendall(f"{GREETING} {kind} {place.rank}\n".encode())
    return link


def _wait_for_all(place: Place, life: socket.socket, deadline: float, seconds: float) -> str:
    # The meeting point has the same limit and knows who is missing: leave it the time to say so.
    life.settimeout(max(0.1, deadline - time.monotonic()) + 5)
    try:
        words = _read_line(life).split()
    except TimeoutError as error:
        raise RunFailed(
            f"the meeting point {place.host}:{place.port} did not answer within {seconds:g} s: is it another program's?"
        ) from error
    except OSError:
        words = []
    life.settimeout(None)
    match words:
        case ["welcome", name]:
            return name
        case ["missing", ranks]:
            absent = ", ".join(place.named(int(rank)) for rank in ranks.split(","))
            raise RunFailed(f"{absent} did not come to {place.host}:{place.port} within {seconds:g} s")
        case ["taken"]:
            raise RunFailed(f"{place.named(place.rank)} came to {place.host}:{place.port} a second time")
    raise PeerLost(f"lost {place.named(0)} while waiting at {place.host}:{place.port} for the others")


def _read_line(link: socket.socket) -> str:
    """One line, byte by byte: what follows it is the next reader's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = link.recv(1)
        if not byte:
            return ""
        line += byte
    return line.decode(errors="replace")
