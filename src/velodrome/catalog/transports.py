"""What transports need: packages that must be installed, an MPI that can be loaded, and shared memory on a host.

Nothing is loaded into this process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from functools import cache

from velodrome.catalog import segments
from velodrome.catalog.base import Need, Strategy
from velodrome.printable import bytes_text

MPI_NEEDS = (Need("mpi4py", 'pip install "velodrome[mpi]"'),)
#: Loads MPI without starting it; mpi4py adds every path that it tried to the reason.
_LOAD = """
import sys
try:
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    print(str(error).partition("\\n")[0])
    sys.exit(1)
"""
_LOAD_SECONDS = 20.0


def uses_mpi(strategy: Strategy) -> bool:
    """Whether the processes of a strategy are MPI ranks."""
    return MPI_NEEDS[0] in strategy.needs


def mpi_fault() -> str | None:
    """Why MPI cannot be loaded here, and how to fix it; None if it can, or if that is unknown."""
    why = _load_error(os.environ.get("MPI4PY_LIBMPI"))
    way_out = f'pip install "velodrome[mpi]" into {sys.prefix}, or choose a strategy without MPI (velodrome engines)'
    return why and f"MPI cannot be loaded ({why}): {way_out}"


@cache
def _load_error(library: str | None) -> str | None:
    """What a process says that loads MPI, on whose environment it depends which library that is."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _LOAD], capture_output=True, text=True, errors="replace", timeout=_LOAD_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return None
    return next(iter(done.stdout.splitlines()), f"exit code {done.returncode}")


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
