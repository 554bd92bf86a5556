"""Where the MPI ranks of a job rendezvous: a small server, so that no `mpiexec` is needed.

The controller must start, watch and end every process itself, which `mpiexec` would do in its place; and `mpiexec`
garbles long lines of output, such as events.

Rank 0 starts it as a child (`python -m velodrome.transport.rendezvous_server`) on a socket that it has bound. Each rank
has two connections: `pmi`, over which MPICH itself talks while it starts and ends, and `liveness`, which reports ranks
that are lost. Both have proved that they belong to the job (`transport/sockets.py`). Only the standard library is
imported, so that it is up at once.

All that depends on MPICH's process-management interface is here, too. PMI-1 is its documented interface to launchers: a
connected socket in `PMI_FD`, over which it asks for its rank's key-value space and barriers. `tests/transport` fails if
a version of MPICH stops using it; a training process then refuses and names the strategies that do without MPI.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from velodrome.catalog import segments
from velodrome.transport.sockets import JobListener
from velodrome.variables import TOKEN

#: What MPICH may put into one value; longer ones it splits itself.
_MAXES = "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"


def process_mapping(hosts: Sequence[str]) -> str:
    """Which ranks share a machine, in PMI's notation: runs of (node, one node, ranks on it)."""
    nodes = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    runs: list[list[int]] = []
    for host in hosts:
        if runs and runs[-1][0] == nodes[host]:
            runs[-1][2] += 1
        else:
            runs.append([nodes[host], 1, 1])
    return "(vector," + ",".join("({},{},{})".format(*run) for run in runs) + ")"


class KeyValueSpace:
    """The values that the ranks of a job exchange while MPICH starts, and the answers to their requests."""

    def __init__(self, job: str, hosts: Sequence[str]) -> None:
        self._values = {"PMI_process_mapping": process_mapping(hosts)}
        self._answers = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": _MAXES,
            "get_appnum": "cmd=appnum rc=0 appnum=0",
            "get_my_kvsname": f"cmd=my_kvsname rc=0 kvsname={job}",
            "get_universe_size": f"cmd=universe_size rc=0 size={len(hosts)}",
            "finalize": "cmd=finalize_ack rc=0",
        }

    def answer(self, request: dict[str, str]) -> str | None:
        """The answer to one request; None for `barrier_in`, which is answered when all ranks have sent it."""
        match request.get("cmd"):
            case "put":
                self._values[request.get("key", "")] = request.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get":
                value = self._values.get(request.get("key", ""))
                result = "rc=-1 msg=unknown value=unknown" if value is None else f"rc=0 msg=success value={value}"
                return f"cmd=get_result {result}"
        return self._answers.get(request.get("cmd", ""))


BARRIER_IN = "barrier_in"
BARRIER_OUT = "cmd=barrier_out rc=0"


def parse_request(words: Sequence[str]) -> dict[str, str]:
    """The fields of one line that MPICH sends."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def announce(connection: socket.socket, rank: int, size: int) -> None:
    """Let MPICH, when it starts in this process, find its process manager behind a connection."""
    connection.settimeout(None)
    os.environ.update(PMI_FD=str(connection.fileno()), PMI_RANK=str(rank), PMI_SIZE=str(size))


def retire(connection: socket.socket) -> None:
    """Put a socket that holds the last answer in the place of the connection, after MPI has ended.

    MPICH takes leave of its process manager only when the process exits, and the server may be gone by then. The
    socket stays open until the process ends: MPICH still writes to it.
    """
    ours, theirs = socket.socketpair()
    ours.sendall(b"cmd=finalize_ack rc=0\n")
    os.dup2(theirs.fileno(), connection.fileno())
    theirs.close()
    connection.detach()
    ours.detach()


#: The first word on every connection, so that another program on the port is recognised.
PROTOCOL = "velodrome-mpi-3"
#: Bytes of the longest line of a rank; MPICH's have less than two thousand.
_LONGEST = 1 << 16

#: How long the server stays after it has reported who is missing.
LATE_SECONDS = 1.0

_PR_SET_PDEATHSIG = 1


@dataclass(eq=False)
class Connection:
    """One connection, and the rank behind it once it has joined."""

    link: socket.socket
    unread: bytes = b""
    rank: int = -1
    kind: str = ""

    def send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a closed connection is noticed by its reader
            self.link.sendall(line.encode() + b"\n")


class RendezvousServer:
    """Waits for all ranks, answers MPICH's requests, and reports to the others when a rank is lost."""

    def __init__(self, listener: socket.socket, hosts: Sequence[str], seconds: float, parent: int) -> None:
        self.job = segments.job_name(os.environ.get(TOKEN))
        self._size = len(hosts)
        self._space = KeyValueSpace(self.job, hosts)
        self._deadline = time.monotonic() + seconds
        self._joined: dict[tuple[str, int], Connection] = {}
        self._left: set[int] = set()
        self._complete = False
        self._missing = ""
        self._in_barrier: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self._listener, self._parent = JobListener(listener, PROTOCOL), parent
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(parent, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until every rank has left, the parent has ended, or not all have joined in time."""
        while True:
            left = None if self._complete else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                if self._missing:
                    return
                self._report_missing()
                continue
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listener:
                    for link, words in self._listener.accept(0):
                        self._enter(link, words)
                elif key.fileobj == self._parent:
                    if not os.read(self._parent, 1):
                        return
                else:
                    self._read(key.data)
            if self._complete and not self._joined:
                return

    def close(self) -> None:
        """Close all connections: the ranks that are left notice that the server is gone."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Connection):
                key.data.link.close()
        self._selector.close()

    def _enter(self, link: socket.socket, words: list[str]) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(10)  # a peer that stops reading must not stop the server
        connection = Connection(link)
        self._selector.register(link, selectors.EVENT_READ, connection)
        if not self._join(connection, words):
            self._disconnect(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.link.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._disconnect(connection)
            return
        *lines, connection.unread = (connection.unread + data).split(b"\n")
        for line in lines:
            words = line.decode(errors="replace").split()
            if connection.kind == "pmi":
                self._answer(connection, parse_request(words))
            elif words == ["leave"]:
                self._left.add(connection.rank)
        if len(connection.unread) > _LONGEST:
            self._disconnect(connection)

    def _join(self, connection: Connection, words: list[str]) -> bool:
        if len(words) != 2 or words[0] not in ("pmi", "liveness") or not words[1].isdecimal():
            return False
        place = words[0], int(words[1])
        if place[1] >= self._size or place in self._joined or self._complete:
            connection.send("taken")
            return False
        connection.kind, connection.rank = place
        self._joined[place] = connection
        if self._missing:
            if connection.kind == "liveness":
                connection.send(f"missing {self._missing}")
            return True
        if len(self._joined) == 2 * self._size:
            self._complete = True
            self._selector.unregister(self._listener)
            self._listener.close()
            self._send_all(f"complete {self.job}")
        return True

    def _disconnect(self, connection: Connection) -> None:
        self._selector.unregister(connection.link)
        connection.link.close()
        if self._joined.pop((connection.kind, connection.rank), None) is None:
            return
        if self._complete and connection.kind == "liveness" and connection.rank not in self._left:
            self._send_all(f"lost {connection.rank}")

    def _report_missing(self) -> None:
        """Report it to all ranks that are there, and for a moment to those that join too late."""
        self._missing = ",".join(str(rank) for rank in range(self._size) if ("liveness", rank) not in self._joined)
        self._deadline = time.monotonic() + LATE_SECONDS
        self._send_all(f"missing {self._missing}")

    def _send_all(self, line: str) -> None:
        for connection in self._joined.values():
            if connection.kind == "liveness":
                connection.send(line)

    def _answer(self, connection: Connection, request: dict[str, str]) -> None:
        if request.get("cmd") == BARRIER_IN:
            if connection not in self._in_barrier:
                self._in_barrier.append(connection)
            if len(self._in_barrier) == self._size:
                for waiting in self._in_barrier:
                    waiting.send(BARRIER_OUT)
                self._in_barrier.clear()
        elif answer := self._space.answer(request):
            connection.send(answer)


def _exit(signum: int, frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="The rendezvous of the MPI ranks of one job.")
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the bound, listening socket")
    parser.add_argument("--hosts", required=True, help="host of every rank, separated by commas")
    parser.add_argument("--seconds", type=float, required=True, help="how long to wait for all ranks")
    options = parser.parse_args()
    started = time.time()
    # The parent's Ctrl-C is the parent's to handle; its death ends us, by signal and by the end of our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    server = RendezvousServer(
        socket.socket(fileno=options.listener), options.hosts.split(","), options.seconds, sys.stdin.fileno()
    )
    try:
        server.serve()
    finally:
        # The parent's death comes twice, and its signal must not end the tidying that the end of the input has begun.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.close()  # first: no rank waits for the tidying
        segments.remove_job(server.job)
        segments.remove_orphans(started)


if __name__ == "__main__":
    main()
