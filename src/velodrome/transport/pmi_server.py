"""The meeting point of MPI ranks: a small server that speaks PMI-1, so that no `mpiexec` is needed.

Rank 0 starts it as a child (`python -m velodrome.transport.pmi_server`) on a socket it has bound. Each rank has two
connections: `pmi`, over which MPICH itself talks while it starts and ends, and `life`, which tells who is still there.
Only the standard library is imported, so that it is up at once.
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

from velodrome.offers.segments import job_name, remove_job
from velodrome.variables import TOKEN

#: Each side says this first, so that a stranger on the port is recognised.
GREETING = "velodrome-mpi-1"

#: How long the meeting point stays after it has told who is missing.
LATE_SECONDS = 1.0

_PR_SET_PDEATHSIG = 1
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


@dataclass(eq=False)
class Visitor:
    """One connection, and the rank behind it once it has said so."""

    link: socket.socket
    unread: bytes = b""
    rank: int = -1
    kind: str = ""

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # gone; the read side will tell
            self.link.sendall(line.encode() + b"\n")


class Meeting:
    """The server: waits for all ranks, answers MPICH's questions, tells the others when a rank is lost."""

    def __init__(self, listener: socket.socket, hosts: Sequence[str], seconds: float, parent: int) -> None:
        self.name = job_name(os.environ.get(TOKEN))
        self._size = len(hosts)
        self._values = {"PMI_process_mapping": process_mapping(hosts)}
        self._deadline = time.monotonic() + seconds
        self._present: dict[tuple[str, int], Visitor] = {}
        self._parted: set[int] = set()
        self._complete = False
        self._missing = ""
        self._barrier: list[Visitor] = []
        self._selector = selectors.DefaultSelector()
        self._listener, self._parent = listener, parent
        listener.setblocking(True)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(parent, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until every rank has gone, the parent has, or not all came in time."""
        while True:
            left = None if self._complete else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                if self._missing:
                    return
                self._tell_missing()
                continue
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listener:
                    self._welcome()
                elif key.fileobj == self._parent:
                    if not os.read(self._parent, 1):
                        return
                else:
                    self._hear(key.data)
            if self._complete and not self._present:
                return

    def _welcome(self) -> None:
        link, _ = self._listener.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(10)  # a peer that stops reading must not stop the server
        self._selector.register(link, selectors.EVENT_READ, Visitor(link))

    def _hear(self, visitor: Visitor) -> None:
        try:
            data = visitor.link.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._part(visitor)
            return
        *lines, visitor.unread = (visitor.unread + data).split(b"\n")
        for line in lines:
            words = line.decode(errors="replace").split()
            if visitor.rank < 0:
                if not self._introduce(visitor, words):
                    self._part(visitor)
                    return
            elif visitor.kind == "pmi":
                self._answer(visitor, dict(word.split("=", 1) for word in words if "=" in word))
            elif words == ["bye"]:
                self._parted.add(visitor.rank)

    def _introduce(self, visitor: Visitor, words: list[str]) -> bool:
        if len(words) != 3 or words[0] != GREETING or words[1] not in ("pmi", "life") or not words[2].isdigit():
            return False
        place = words[1], int(words[2])
        if place[1] >= self._size or place in self._present or self._complete:
            visitor.say("taken")
            return False
        visitor.kind, visitor.rank = place
        self._present[place] = visitor
        if self._missing:
            if visitor.kind == "life":
                visitor.say(f"missing {self._missing}")
            return True
        if len(self._present) == 2 * self._size:
            self._complete = True
            self._selector.unregister(self._listener)
            self._listener.close()
            for other in self._present.values():
                if other.kind == "life":
                    other.say(f"welcome {self.name}")
        return True

    def _part(self, visitor: Visitor) -> None:
        self._selector.unregister(visitor.link)
        visitor.link.close()
        if self._present.pop((visitor.kind, visitor.rank), None) is None:
            return
        if self._complete and visitor.kind == "life" and visitor.rank not in self._parted:
            for other in self._present.values():
                if other.kind == "life":
                    other.say(f"lost {visitor.rank}")

    def _tell_missing(self) -> None:
        """Tell everybody, and for a moment those who come too late."""
        self._missing = ",".join(str(rank) for rank in range(self._size) if ("life", rank) not in self._present)
        self._deadline = time.monotonic() + LATE_SECONDS
        for visitor in self._present.values():
            if visitor.kind == "life":
                visitor.say(f"missing {self._missing}")

    def _answer(self, visitor: Visitor, question: dict[str, str]) -> None:
        command = question.get("cmd", "")
        if command == "put":
            self._values[question["key"]] = question["value"]
            visitor.say("cmd=put_result rc=0 msg=success")
        elif command == "get":
            value = self._values.get(question["key"])
            found = "rc=-1 msg=unknown value=unknown" if value is None else f"rc=0 msg=success value={value}"
            visitor.say(f"cmd=get_result {found}")
        elif command == "barrier_in":
            self._barrier.append(visitor)
            if len(self._barrier) == self._size:
                for waiting in self._barrier:
                    waiting.say("cmd=barrier_out rc=0")
                self._barrier.clear()
        else:
            answers = {
                "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                "get_maxes": _MAXES,
                "get_appnum": "cmd=appnum rc=0 appnum=0",
                "get_my_kvsname": f"cmd=my_kvsname rc=0 kvsname={self.name}",
                "get_universe_size": f"cmd=universe_size rc=0 size={self._size}",
                "finalize": "cmd=finalize_ack rc=0",
            }
            if command in answers:
                visitor.say(answers[command])


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="The meeting point of the MPI ranks of one job.")
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the bound, listening socket")
    parser.add_argument("--hosts", required=True, help="host of every rank, separated by commas")
    parser.add_argument("--seconds", type=float, required=True, help="how long to wait for all ranks")
    options = parser.parse_args()
    # The parent's Ctrl-C is the parent's to handle; its death ends us, by signal and by the end of our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    meeting = Meeting(
        socket.socket(fileno=options.listener), options.hosts.split(","), options.seconds, sys.stdin.fileno()
    )
    try:
        meeting.serve()
    finally:
        remove_job(meeting.name)


if __name__ == "__main__":
    main()
