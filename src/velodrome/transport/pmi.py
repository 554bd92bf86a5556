"""How MPICH starts without `mpiexec`: the process manager's side of PMI-1, and what MPICH finds in its environment.

All that depends on MPICH's process-management interface is here. PMI-1 is its documented interface to launchers: a
connected socket in `PMI_FD`, over which it asks for its rank's key-value space and barriers. `tests/transport` fails
when a version of MPICH stops to use it; a training process then refuses with the strategies that do without MPI.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

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
    """What the ranks of one job tell one another while MPICH starts, and the answers to their requests."""

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
                found = "rc=-1 msg=unknown value=unknown" if value is None else f"rc=0 msg=success value={value}"
                return f"cmd=get_result {found}"
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
