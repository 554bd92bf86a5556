"""MPI as a transport: all-reduce of flat buffers by MPICH (shared memory on a host, TCP between hosts).

Its ranks find one another at a rendezvous: rank 0 starts a server, all ranks join and wait until it is complete.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from velodrome.catalog import segments
from velodrome.catalog.exchange import shared_memory_shortage
from velodrome.errors import PeerLost, RunFailed, bytes_text
from velodrome.transport.base import Ranks, Transport
from velodrome.transport.rendezvous_server import LATE_SECONDS, PROTOCOL, announce, retire
from velodrome.transport.sockets import AuthenticationError, connect, interface_of, listen_at, read_line

#: A call into MPI may notice a lost peer by itself; only if it does not, in this time, the process is ended for it.
_GRACE_SECONDS = 1.0


class MpiTransport(Transport):
    """This process among the ranks of a job. Other threads keep running while a call waits."""

    def __init__(self, ranks: Ranks, seconds: float, on_lost: Callable[[str], None]) -> None:
        """Join the other ranks within `seconds`. `on_lost` is called, in a thread, when a rank is lost."""
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self._on_lost = ranks, on_lost
        # Loaded first: a rank that cannot load it must not join, and let the others wait inside MPI.
        self._mpi = _load_mpi()
        here = ranks.hosts[ranks.rank]
        if ranks.hosts.index(here) == ranks.rank and (shortage := shared_memory_shortage(ranks.hosts.count(here))):
            raise RunFailed(shortage)
        self._rendezvous = join(ranks, seconds)
        self._closing, self._segments = False, 0
        already = segments.mapped()
        # MPI's own start has no time limit and keeps the interpreter's lock, so that no thread of ours could end it.
        faulthandler.dump_traceback_later(seconds, exit=True)
        announce(self._rendezvous.pmi, ranks.rank, ranks.size)
        _start_mpi(self._mpi, ranks.hosts[ranks.rank])
        self._world = self._mpi.COMM_WORLD
        _check_size(self._world.Get_size(), ranks.size)
        self._world.Barrier()
        faulthandler.cancel_dump_traceback_later()
        # All ranks have mapped it: without a name nothing is left behind, however a rank ends.
        segments.remove(segments.mapped() - already)
        threading.Thread(target=self._watch, name="mpi-liveness", daemon=True).start()

    def shared(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any] | None:
        """In memory of the host, if all ranks are on one and there is enough of it."""
        if self.size == 1 or len(set(self._ranks.hosts)) > 1:
            return None
        path = segments.path_of(self._rendezvous.job, self._segments)
        self._segments += 1
        self.not_shared = create_segment(path, shape, dtype) if self.rank == 0 else None
        self.barrier()
        mapped = attach_segment(path, shape, dtype) if self.not_shared is None else None
        attached = np.array([mapped is not None], np.int64)
        self.all_reduce(attached)
        if self.rank == 0:
            path.unlink(missing_ok=True)
        return mapped if attached[0] == self.size else None

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        self._call(self._world.Allreduce, self._mpi.IN_PLACE, buffer)

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        self._call(self._world.Bcast, buffer, root)

    def barrier(self) -> None:
        self._call(self._world.Barrier)

    def close(self) -> None:
        if self._closing:
            return
        self.barrier()
        self._closing = True
        self._rendezvous.liveness.sendall(b"leave\n")
        self._mpi.Finalize()
        retire_from(self._rendezvous)

    def _call(self, operation: Callable[..., object], *arguments: object) -> None:
        """A collective operation of MPI."""
        try:
            operation(*arguments)
        except self._mpi.Exception as error:
            first_line = str(error).splitlines()[0]
            raise PeerLost(f"{self._ranks.named(self.rank)} lost the others in MPI: {first_line}") from error

    def _watch(self) -> None:
        """Wait for the report of a lost rank: MPICH itself would wait for it for ever in shared memory."""
        try:
            words = self._rendezvous.liveness.recv(64).decode(errors="replace").split()
        except OSError:
            words = []
        if self._closing:
            return
        # A closed connection means that the server is gone, which ends with rank 0.
        lost = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
        time.sleep(_GRACE_SECONDS)
        if not self._closing:
            self._on_lost(f"{self._ranks.named(self.rank)} lost {self._ranks.named(lost)}")


def _start_mpi(mpi: Any, host: str) -> None:
    prepare_network(host)
    # Of MPICH's levels this one is the fastest in shared memory: 0.19 ms for a megabyte, 0.70 with FUNNELED.
    mpi.Init_thread(mpi.THREAD_MULTIPLE)


def prepare_network(host: str) -> None:
    """Choose, before MPICH starts, by what it reaches other hosts."""
    # Between hosts: libfabric over TCP on the interface of the plan's host, unless the user chose another network.
    os.environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
    if "FI_PROVIDER" not in os.environ:
        os.environ["FI_PROVIDER"] = "tcp"
        interface = interface_of(host)
        if interface:
            os.environ.setdefault("FI_TCP_IFACE", interface)


def _check_size(size: int, wanted: int) -> None:
    """Refuse an MPI that started alone: its sums would be those of one rank."""
    if size != wanted:
        raise RunFailed(
            f"MPI started with {size} rank(s) instead of {wanted}: this version of MPICH cannot start without its "
            "launcher; choose a strategy without MPI (velodrome engines)"
        )


def _load_mpi() -> Any:
    try:
        import mpi4py

        # A rank that fails must not wait for the others at its exit, so MPI ends only in close().
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)  # mpi4py adds every path that it tried
        raise RunFailed(f'MPI cannot be loaded ({why}): pip install "velodrome[mpi]" into {sys.prefix}') from error
    library = MPI.Get_library_version().splitlines()[0]
    if not library.startswith("MPICH"):
        raise RunFailed(
            f'mpi4py loaded {library!r}, which cannot start without its launcher: pip install "velodrome[mpi]" into '
            f"{sys.prefix}"
        )
    return MPI


Shape = tuple[int, int]


def create_segment(path: Path, shape: Shape, dtype: DTypeLike) -> str | None:
    """Create the segment with all of its memory; else why it cannot be, as part of a sentence."""
    size = _size(shape, dtype)
    try:
        segments.allocate(path, size)
    except OSError as error:
        free = bytes_text(segments.free())
        return f"{bytes_text(size)} of shared memory, and {path.parent} has {free} free ({error.strerror})"
    return None


def attach_segment(path: Path, shape: Shape, dtype: DTypeLike) -> NDArray[Any] | None:
    """The segment as an array, of zeros at first; None where it cannot be mapped."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, _size(shape, dtype))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, dtype).reshape(shape)


def _size(shape: Shape, dtype: DTypeLike) -> int:
    return shape[0] * shape[1] * np.dtype(dtype).itemsize


_RETRY_SECONDS = 0.05


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
    """Join the rendezvous and wait until all ranks have, for at most `seconds`."""
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


def leave(rendezvous: Rendezvous) -> None:
    """Leave the rendezvous, after MPI has ended."""
    rendezvous.liveness.sendall(b"leave\n")
    retire_from(rendezvous)


def retire_from(rendezvous: Rendezvous) -> None:
    """Close the connections of a rank that leaves."""
    retire(rendezvous.pmi)
    rendezvous.liveness.shutdown(socket.SHUT_RDWR)  # wakes the watching thread too
    rendezvous.liveness.close()
    if rendezvous.server is not None:
        stop_server(rendezvous.server, 5)


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
            link = connect((ranks.host, ranks.port), PROTOCOL, [kind, str(ranks.rank)], left)
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
    if isinstance(error, AuthenticationError):
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
