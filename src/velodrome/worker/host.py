"""What a training process arranges with its operating system: its cores, and that it never outlives its controller."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress

from velodrome.machine import allowed_cores
from velodrome.machine import cores as machine_cores

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def claim_cores(slot: int, slots: int, threads: int | None) -> int:
    """Pin this process to its fair share of the host's cores; the threads it should use.

    With more processes than cores, each gets one core and shares it. In a container that may use only the time of fewer
    cores than it sees, nothing is pinned: every container would choose the same ones.
    """
    if slots == 0:
        return threads or 1
    cores, count = allowed_cores(), machine_cores()
    wanted = threads or max(1, count // slots)
    if count < len(cores):
        return wanted
    if wanted * slots <= len(cores):
        mine = cores[slot * wanted : (slot + 1) * wanted]
    elif wanted == 1:
        mine = [cores[slot % len(cores)]]
    else:
        mine = cores
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, mine)
    return wanted


def limit_threads(threads: int) -> None:
    """Tell numerical libraries, before they load, how many threads they may start."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)


def _prctl(option: int, value: object) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the controller's main thread ends, and let py-spy look at us."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY)


def watch_lifeline() -> None:
    """End at once when the controller's end of our standard input closes, in whatever way it ended."""
    lifeline = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    def wait() -> None:
        with suppress(OSError):
            while os.read(lifeline, 4096):
                pass
        with suppress(OSError):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(137)

    threading.Thread(target=wait, name="velodrome-lifeline", daemon=True).start()
