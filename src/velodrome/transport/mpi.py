"""MPI as a transport: all-reduce of flat buffers by MPICH (shared memory on a host, TCP between hosts)."""

from __future__ import annotations

import faulthandler
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from velodrome.catalog import segments
from velodrome.catalog.exchange import shared_memory_shortage
from velodrome.errors import PeerLost, RunFailed
from velodrome.printable import bytes_text
from velodrome.transport.base import Transport
from velodrome.transport.interfaces import interface_of
from velodrome.transport.rendezvous import Ranks, join, stop_server
from velodrome.transport.rendezvous_server import announce, retire

#: A call into MPI may notice a lost peer by itself; only if it does not, in this time, the process is ended for it.
_GRACE_SECONDS = 1.0


class MpiTransport(Transport):
    """This process among the ranks of a job. Other threads keep running while a call waits."""

    def __init__(self, ranks: Ranks, seconds: float, on_lost: Callable[[str], None]) -> None:
        """Join the other ranks within so many seconds. `on_lost` is called, in a thread, when a rank is lost."""
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
        """Replace a contiguous buffer by its sum over the ranks."""
        try:
            self._world.Allreduce(self._mpi.IN_PLACE, buffer)
        except self._mpi.Exception as error:
            raise self._lost(error) from error

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        """Replace a contiguous buffer by the root's."""
        try:
            self._world.Bcast(buffer, root)
        except self._mpi.Exception as error:
            raise self._lost(error) from error

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        try:
            self._world.Barrier()
        except self._mpi.Exception as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Leave together."""
        if self._closing:
            return
        self.barrier()
        self._closing = True
        liveness = self._rendezvous.liveness
        liveness.sendall(b"leave\n")
        self._mpi.Finalize()
        retire(self._rendezvous.pmi)
        liveness.shutdown(socket.SHUT_RDWR)  # wakes the watching thread too
        liveness.close()
        if self._rendezvous.server is not None:
            stop_server(self._rendezvous.server, 5)

    def _lost(self, error: Exception) -> PeerLost:
        return PeerLost(f"{self._ranks.named(self.rank)} lost the others in MPI: {str(error).splitlines()[0]}")

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
    # Between hosts: libfabric over TCP on the interface of the plan's host, unless the user chose another network.
    os.environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
    if "FI_PROVIDER" not in os.environ:
        os.environ["FI_PROVIDER"] = "tcp"
        interface = interface_of(host)
        if interface:
            os.environ.setdefault("FI_TCP_IFACE", interface)
    # Of MPICH's levels this one is the fastest in shared memory: 0.19 ms for a megabyte, 0.70 with FUNNELED.
    mpi.Init_thread(mpi.THREAD_MULTIPLE)


def _check_size(found: int, wanted: int) -> None:
    """Refuse an MPI that started alone: its sums would be those of one rank."""
    if found != wanted:
        raise RunFailed(
            f"MPI started with {found} rank(s) instead of {wanted}: this version of MPICH cannot start without its "
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
