"""How the workers of a strategy synchronize and what they exchange: consistency models, and bytes as formulas.

Also what the exchange needs: packages, an MPI that can be loaded, and shared memory on a host. Nothing is loaded into
this process.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from velodrome.catalog import segments
from velodrome.errors import bytes_text

Model = Literal["none", "bsp", "asp", "ssp", "dssp", "osp", "periodic", "script"]
#: Consistency models under which every worker updates the weights by itself.
ASYNCHRONOUS = frozenset({"asp", "ssp", "dssp"})
_PARSED = re.compile(r"(?P<model>[a-z]+)(?::(?P<low>\d{1,9})(?:\.\.(?P<high>\d{1,9}))?)?")


@dataclass(frozen=True)
class Consistency:
    """Who waits for whom between two updates of the weights.

    `none`: one process. `bsp`: all workers at every step. `asp`: nobody. `ssp:S`: the fastest worker, once it is S
    steps ahead of the slowest. `dssp:LOW..HIGH`: the same, with a bound that adapts to the workers' speed. `osp`: all
    workers, for a part of the gradients; the rest is sent while the next step computes. `periodic`: all workers, every
    few steps. `script`: as a script of the user's own decides.
    """

    model: Model
    #: The steps that a worker may be ahead of the slowest; None under models without a bound, and in the description of
    #: a strategy, which leaves it to the job. Only `dssp` has a range.
    low: int | None = None
    high: int | None = None

    @classmethod
    def parse(cls, text: str) -> Consistency:
        """From `bsp`, `ssp:3` or `dssp:2..8`; `ValueError` if it is no consistency model."""
        match = _PARSED.fullmatch(text)
        bounds = [int(match[name]) for name in ("low", "high") if match[name]] if match else []
        wanted = {"ssp": 1, "dssp": 2}.get(match["model"], 0) if match else 0
        if match is None or match["model"] not in get_args(Model) or len(bounds) != wanted or bounds != sorted(bounds):
            raise ValueError(f"{text!r} is not a consistency model: use bsp, asp, ssp:S, dssp:LOW..HIGH, osp or "
                             "periodic")
        return cls(match["model"], *bounds)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """As `parse` takes it; with the names of its bounds if they are open."""
        match self.model:
            case "ssp":
                return f"ssp:{'S' if self.low is None else self.low}"
            case "dssp":
                return "dssp:LOW..HIGH" if self.low is None else f"dssp:{self.low}..{self.high}"
        return self.model

    @property
    def example(self) -> Consistency:
        """The same with bounds, where they are open."""
        bounds = {"ssp": (3,), "dssp": (1, 4)}.get(self.model, ())
        return self if self.low is not None else Consistency(self.model, *bounds)

    @property
    def synchronous(self) -> bool:
        """Whether workers go through the steps together; otherwise each updates the weights by itself."""
        return self.model not in ASYNCHRONOUS


NONE, BSP, ASP = Consistency("none"), Consistency("bsp"), Consistency("asp")
#: As a strategy offers them; a job says the bounds.
SSP, DSSP = Consistency("ssp"), Consistency("dssp")
PERIODIC, SCRIPT = Consistency("periodic"), Consistency("script")

#: How the workers of a strategy exchange what they computed. `none`: one process. `devices`: several devices inside one
#: process. `all-reduce`: gradients summed over sockets. `all-reduce-in-memory`: the same, through memory on one host.
#: `servers`: weights down from and gradients up to parameter servers. `all-reduce-and-broadcast`: gradients summed, and
#: new weights sent by the one that computed them. `all-reduce-and-gather`: gradients summed, and weights gathered for
#: each step. `gather-and-scatter`: weights gathered for each pass, gradients summed where the weights are. `periodic`:
#: weights summed every few steps.
Exchange = Literal[
    "none", "devices", "all-reduce", "all-reduce-in-memory", "servers", "all-reduce-and-broadcast",
    "all-reduce-and-gather", "gather-and-scatter", "periodic",
]

_RING = "2·(N−1)/N·G sent and as much received"


@dataclass(frozen=True)
class Traffic:
    """Bytes per worker and step."""

    #: If all workers are on one host: over its loopback interface.
    one_host: int
    #: If each worker is on a host of its own: over the network.
    several_hosts: int
    #: How they are computed: G is the bytes of the gradients, N the number of workers.
    formula: str


def traffic_of(
    exchange: Exchange, gradient_bytes: int, workers: int, *, groups: int = 1, every: int = 1, compressed: float = 1.0
) -> Traffic:
    """What a worker sends per step, and receives as much, with gradients of so many bytes.

    `groups` is how many groups of so many workers each have the whole model, where there is a mesh; `every` after how
    many steps the workers of a `periodic` strategy synchronize; `compressed` the part of its bytes that a gradient has
    when it is sent.
    """
    ring = round(2 * (workers - 1) / workers * gradient_bytes)
    match exchange:
        case "none":
            return Traffic(0, 0, "one process exchanges nothing")
        case "devices":
            return Traffic(0, 0, "devices of one process exchange G in memory")
        case "all-reduce" if compressed != 1.0:
            sent = round(compressed * ring)
            return Traffic(sent, sent, f"2·(N−1)/N·G·{compressed:g} sent and as much received: compressed gradients")
        case "all-reduce":
            return Traffic(ring, ring, _RING)
        case "all-reduce-in-memory":
            return Traffic(0, ring, f"{_RING}; in memory on one host")
        case "all-reduce-and-broadcast":
            both = round(3 * (workers - 1) / workers * gradient_bytes)
            return Traffic(both, both, "3·(N−1)/N·G sent and as much received: gradients summed, new weights broadcast")
        case "all-reduce-and-gather":
            both = round(3 * (workers - 1) / workers * gradient_bytes)
            return Traffic(both, both, "3·(N−1)/N·G sent and as much received: gradients summed, weights gathered")
        case "gather-and-scatter":
            inside = 3 * (workers - 1) / workers * gradient_bytes
            both = round(inside + between_groups(gradient_bytes / workers, groups))
            between = "" if groups == 1 else f"; 2·(M−1)/M·G/N between M = {groups} groups of N = {workers}"
            return Traffic(both, both, "at most 3·(N−1)/N·G sent and as much received: weights gathered for each pass, "
                           f"gradients scattered{between}")
        case "periodic":
            mean = round(ring / every)
            return Traffic(mean, mean, f"2·(N−1)/N·G/{every} sent and as much received: weights every {every} steps")
        case "servers":
            return Traffic(gradient_bytes, gradient_bytes, "G of weights received and G of gradients sent")


def between_groups(part_bytes: float, groups: int) -> float:
    """What a worker sends to those of the other groups of a mesh that have the same part of the gradients, by a
    ring."""
    return 2 * (groups - 1) / groups * part_bytes


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


def mpi_fault() -> str | None:
    """Why MPI cannot be loaded here, and how to fix it; None if it can, or if that is unknown."""
    why = _load_error(os.environ.get("MPI4PY_LIBMPI"))
    how_to_fix = f'pip install "velodrome[mpi]" into {sys.prefix}, or choose a strategy without MPI (velodrome engines)'
    return why and f"MPI cannot be loaded ({why}): {how_to_fix}"


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
            f"{segments.FOLDER} {has}, but MPI needs {bytes_text(size)} of shared memory there for {workers} on one "
            f"host: enlarge it (in a container, --shm-size=64m), make it writable, or choose a strategy without MPI "
            "(velodrome engines)"
        )
    path.unlink(missing_ok=True)
    return None
