"""What this machine has: processor, cores, and the memory that is left within the limits of container and process.

Only facts of the operating system live here; how it is divided is decided above.
"""

from __future__ import annotations

import os
import platform
import resource
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
#: Limit, use and details of our container's memory, in both generations of control groups.
_CGROUPS = (
    (_V2 / "memory.max", _V2 / "memory.current", _V2 / "memory.stat"),
    (_V1 / "memory.limit_in_bytes", _V1 / "memory.usage_in_bytes", _V1 / "memory.stat"),
)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def describe_machine() -> dict[str, Any]:
    """Processor, the cores that this process may use, memory and operating system."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def available_memory() -> int:
    """Bytes that new processes may take: what the machine has left, within the limit of our container."""
    available = int(psutil.virtual_memory().available)
    for limit, used, details in _CGROUPS:
        try:
            left = int(limit.read_text()) - int(used.read_text())
            # The kernel frees pages of files that were not read lately when memory is needed.
            fields = dict(line.split() for line in details.read_text().splitlines())
            left += int(fields.get("inactive_file", 0))
        except (OSError, ValueError):
            continue
        available = min(available, max(0, left))
    return available


def process_memory() -> int:
    """Bytes that this process may still take: what is available, within the limits of its own (`ulimit -v`, `-d`)."""
    available, taken = available_memory(), psutil.Process().memory_info()
    limits = ((resource.RLIMIT_AS, taken.vms), (resource.RLIMIT_DATA, getattr(taken, "data", taken.rss)))
    for which, used in limits:
        soft = resource.getrlimit(which)[0]
        if soft != resource.RLIM_INFINITY:
            available = min(available, max(0, soft - used))
    return available
