"""What transports need: packages that must be installed, and shared memory on a host. Nothing is loaded."""

from __future__ import annotations

import errno
import os
import sys

from velodrome.catalog import segments
from velodrome.catalog.base import Need, Strategy
from velodrome.printable import bytes_text

MPI_NEEDS = (Need("mpi4py", 'pip install "velodrome[mpi]"'),)


def uses_mpi(strategy: Strategy) -> bool:
    """Whether the processes of a strategy are MPI ranks."""
    return MPI_NEEDS[0] in strategy.needs


def shared_memory_shortage(ranks: int) -> str | None:
    """Why so many MPI ranks cannot start on this host, as a sentence that says how to fix it; None if they can."""
    if sys.platform != "linux":
        return None
    size, path = segments.needed(ranks), segments.path_of(f"check_{os.getpid()}", 0)
    try:
        segments.allocate(path, size)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        has = f"has {bytes_text(segments.free())} free" if full else f"cannot be used ({error.strerror})"
        workers = "1 worker" if ranks == 1 else f"{ranks} workers"
        return (
            f"{segments.FOLDER} {has}, and MPI needs {bytes_text(size)} of shared memory there for {workers} on one "
            f"host: enlarge it (in a container, --shm-size=64m), make it writable, or choose a strategy without MPI "
            "(velodrome engines)"
        )
    path.unlink(missing_ok=True)
    return None
