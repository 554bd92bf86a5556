"""What Velodrome sets in a PyTorch process beside PyTorch's own defaults. Each setting is left out, without harm, where
the machine does not have it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

import torch

#: Names of malloc.h, with the bytes that are set; larger values of the first are refused.
_M_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 32 << 20
_M_TRIM_THRESHOLD, _MOST_KEPT = -1, 512 << 20


def keep_freed_memory() -> bool:
    """Let the C library keep what a step frees for the next one, instead of returning pages and faulting in new ones;
    returns whether it does.

    A step of lenet5 with 128 examples (one thread, two runs on a busy machine) takes 1,500 to 2,700 page faults
    without it, which cost 4 to 8 of 45 ms of CPU, and next to none with it; of dense-300-100, 0.04 to 0.24 of 3.7 ms.
    """
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):  # a C library other than GNU's has no `mallopt`
        library = ctypes.CDLL(None)
        settings = ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _MOST_KEPT))
        results = [library.mallopt(name, value) for name, value in settings]
        return results == [1, 1]
    return False


def flush_denormals() -> bool:
    """Let the processor flush denormals to zero, which it computes with many times slower; whether it does.

    The optimizer's state of a gradient that stays zero decays into them. Threads that start later inherit it.
    """
    return torch.set_flush_denormal(True)
