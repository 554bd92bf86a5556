"""How the MPI ranks of a job find one another: rank 0 starts a server, all ranks join and wait until it is complete."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from velodrome.catalog.world import World
from velodrome.errors import PeerLost, RunFailed
from velodrome.transport.door import StrangerError, enter, read_line
from velodrome.transport.interfaces import listen_at
from velodrome.transport.rendezvous_server import LATE_SECONDS, PROTOCOL

_RETRY_SECONDS = 0.05


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


@dataclass
class Rendezvous:
    """The connections of a rank that has joined, after all others have."""

    #: What MPICH talks over.
    pmi: socket.socket
    #: Reports ranks that are lost, for as long as the job lives.
    liveness: socket.socket
    #: The job's name to MPICH.
    job: str
    #: The server's process, in rank 0.
    server: subprocess.Popen[bytes] | None = None


def join(ranks: Ranks, seconds: float) -> Rendezvous:
    """Join the rendezvous and wait until all ranks have, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    server = _start_server(ranks, seconds) if ranks.rank == 0 else None
    try:
        pmi = _connect(ranks, "pmi", deadline, seconds)
        liveness = _connect(ranks, "liveness", deadline, seconds)
        return Rendezvous(pmi, liveness, _wait_for_all(ranks, liveness, deadline, seconds), server)
    except BaseException:
        if server is not None:
            stop_server(server, LATE_SECONDS + 1)  # it still reports to the others
        raise


def stop_server(server: subprocess.Popen[bytes], seconds: float) -> None:
    """Let the server end by itself, and end it if it does not."""
    try:
        server.wait(seconds)
    except subprocess.TimeoutExpired:
        server.terminate()
        server.wait()


def _start_server(ranks: Ranks, seconds: float) -> subprocess.Popen[bytes]:
    listener = listen_at(ranks.host, ranks.port, max(128, 2 * ranks.size))
    command = [sys.executable, "-P", "-m", "velodrome.transport.rendezvous_server"]
    command += ["--listener", str(listener.fileno()), "--hosts", ",".join(ranks.hosts), "--seconds", str(seconds)]
    with listener:
        # Not our output: a reader of it must not wait for the server.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )


def _connect(ranks: Ranks, kind: str, deadline: float, seconds: float) -> socket.socket:
    while True:
        try:
            left = max(0.1, deadline - time.monotonic())
            link = enter((ranks.host, ranks.port), PROTOCOL, [kind, str(ranks.rank)], left)
            break
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise RunFailed(_nobody(ranks, seconds, error)) from error
            time.sleep(_RETRY_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return link


def _nobody(ranks: Ranks, seconds: float, error: OSError) -> str:
    where = f"{ranks.host}:{ranks.port}"
    if isinstance(error, StrangerError):
        return f"the rendezvous at {where} did not answer within {seconds:g} s: {error}"
    return (f"{ranks.named(0)} did not join: nobody answered at {where} within {seconds:g} s "
            f"({error.strerror or error})")


def _wait_for_all(ranks: Ranks, liveness: socket.socket, deadline: float, seconds: float) -> str:
    # The server has the same limit and knows who is missing: leave it the time to report that.
    liveness.settimeout(max(0.1, deadline - time.monotonic()) + 5)
    try:
        words = read_line(liveness).split()
    except TimeoutError as error:
        raise RunFailed(
            f"the rendezvous at {ranks.host}:{ranks.port} did not answer within {seconds:g} s: is another program "
            "listening there?"
        ) from error
    except OSError:
        words = []
    liveness.settimeout(None)
    match words:
        case ["complete", job]:
            return job
        case ["missing", numbers]:
            absent = ", ".join(ranks.named(int(number)) for number in numbers.split(","))
            raise RunFailed(f"{absent} did not join the others at {ranks.host}:{ranks.port} within {seconds:g} s")
        case ["taken"]:
            raise RunFailed(f"{ranks.named(ranks.rank)} joined the rendezvous at {ranks.host}:{ranks.port} twice")
    raise PeerLost(f"lost {ranks.named(0)} while waiting for the others at {ranks.host}:{ranks.port}")
