"""MPI as a transport: sums of flat buffers by MPICH (shared memory on a host, TCP between hosts). No framework here."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from velodrome.errors import PeerLost, RunFailed
from velodrome.offers import segments
from velodrome.transport import shared_memory as shared
from velodrome.transport.base import Transport
from velodrome.transport.interfaces import interface_of
from velodrome.transport.rendezvous import Met, Place, leave, meet

#: A call into MPI may notice a lost peer by itself; only if it does not, in this time, the process is ended for it.
_GRACE_SECONDS = 1.0


class MpiTransport(Transport):
    """This process among the ranks of a job. Any thread may go on while a call waits."""

    def __init__(self, place: Place, seconds: float, on_lost: Callable[[str], None]) -> None:
        """Meet the other ranks within so many seconds. `on_lost` is told, in a thread, of a rank that went away."""
        self.rank, self.size = place.rank, place.size
        self._place, self._on_lost = place, on_lost
        # Loaded first: a rank that cannot must not come, and let the others wait inside MPI.
        self._mpi = _load_mpi()
        self._met = meet(place, seconds)
        self._closing, self._segments = False, 0
        # MPI's own start knows no limit and keeps the interpreter to itself, so that no thread of ours could end it.
        faulthandler.dump_traceback_later(seconds, exit=True)
        _start_mpi(self._mpi, place, self._met)
        self._world = self._mpi.COMM_WORLD
        self._world.Barrier()
        faulthandler.cancel_dump_traceback_later()
        # Everybody has mapped it: without a name nothing is left behind, however a rank ends.
        segments.remove_job(self._met.name)
        threading.Thread(target=self._watch, name="mpi-life", daemon=True).start()

    def shared(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any] | None:
        """In memory of the host, if all ranks are on one and there is enough of it."""
        if self.size == 1 or len(set(self._place.hosts)) > 1:
            return None
        path = segments.path_of(self._met.name, self._segments)
        self._segments += 1
        made = self.rank != 0 or shared.create(path, shape, dtype)
        self.barrier()
        mapped = shared.attach(path, shape, dtype) if made else None
        everybody = np.array([mapped is not None], np.int64)
        self.all_reduce(everybody)
        if self.rank == 0:
            path.unlink(missing_ok=True)
        return mapped if everybody[0] == self.size else None

    def all_reduce(self, buffer: NDArray[Any]) -> None:
        """Replace a contiguous buffer by its sum over the ranks."""
        try:
            self._world.Allreduce(self._mpi.IN_PLACE, buffer)
        except self._mpi.Exception as error:
            raise self._lost(error) from error

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        """Replace a contiguous buffer by that of the root."""
        try:
            self._world.Bcast(buffer, root)
        except self._mpi.Exception as error:
            raise self._lost(error) from error

    def barrier(self) -> None:
        """Wait for the others."""
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
        self._met.life.sendall(b"bye\n")
        self._mpi.Finalize()
        _end_pmi(self._met.pmi)
        self._met.life.shutdown(socket.SHUT_RDWR)  # wakes the watcher too
        self._met.life.close()
        if self._met.server is not None:
            leave(self._met.server, 5)

    def _lost(self, error: Exception) -> PeerLost:
        return PeerLost(f"{self._place.named(self.rank)} lost the others in MPI: {str(error).splitlines()[0]}")

    def _watch(self) -> None:
        """Wait for word of a lost rank: MPICH itself would wait for it for ever in shared memory."""
        try:
            words = self._met.life.recv(64).decode(errors="replace").split()
        except OSError:
            words = []
        if self._closing:
            return
        # Silence means that the meeting point went away, which ends with rank 0.
        lost = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        time.sleep(_GRACE_SECONDS)
        if not self._closing:
            self._on_lost(f"{self._place.named(self.rank)} lost {self._place.named(lost)}")


def _start_mpi(mpi: Any, place: Place, met: Met) -> None:
    met.pmi.settimeout(None)
    os.environ.update(PMI_FD=str(met.pmi.fileno()), PMI_RANK=str(place.rank), PMI_SIZE=str(place.size))
    # Between hosts: libfabric over TCP on the interface of the plan's host, unless the user knows a faster network.
    os.environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
    if "FI_PROVIDER" not in os.environ:
        os.environ["FI_PROVIDER"] = "tcp"
        interface = interface_of(place.hosts[place.rank])
        if interface:
            os.environ.setdefault("FI_TCP_IFACE", interface)
    # Of MPICH's levels this one is the fastest in shared memory: 0.19 ms for a megabyte, 0.70 with FUNNELED.
    mpi.Init_thread(mpi.THREAD_MULTIPLE)


def _load_mpi() -> Any:
    try:
        import mpi4py

        # A rank that fails must not wait for the others at its exit, so MPI ends only in close().
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunFailed(f'MPI cannot be loaded ({error}): pip install "velodrome[mpi]"') from error
    library = MPI.Get_library_version().splitlines()[0]
    if not library.startswith("MPICH"):
        raise RunFailed(
            f'mpi4py loaded {library!r}, which cannot start without its launcher: pip install "velodrome[mpi]" into '
            f"{sys.prefix}"
        )
    return MPI


def _end_pmi(pmi: socket.socket) -> None:
    """Let MPICH say goodbye to nobody: it does so when the process exits, and the meeting point may be gone by then."""
    ours, theirs = socket.socketpair()
    ours.sendall(b"cmd=finalize_ack rc=0\n")
    os.dup2(theirs.fileno(), pmi.fileno())
    theirs.close()
    pmi.detach()
    ours.detach()  # stays open until the process ends: MPICH still writes to it
