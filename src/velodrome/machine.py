"""What this machine has: processor, cores and how busy they are, and the memory that is left, within the limits of
container and process.

Only facts of the operating system live here; how it is divided is decided above.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

PROC_STAT, CONTROL_GROUPS = Path("/proc/stat"), Path("/sys/fs/cgroup")
_V1, _V2 = CONTROL_GROUPS / "memory", CONTROL_GROUPS
#: Limit, use and details of our container's memory, in both generations of control groups.
_CGROUPS = (
    (_V2 / "memory.max", _V2 / "memory.current", _V2 / "memory.stat"),
    (_V1 / "memory.limit_in_bytes", _V1 / "memory.usage_in_bytes", _V1 / "memory.stat"),
)
#: Columns of /proc/stat that are not idle: user, nice, system, irq, softirq, and steal (other virtual machines).
_BUSY = (1, 2, 3, 6, 7, 8)
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def allowed_cores() -> list[int]:
    """The numbers of the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    allowed, quota = len(allowed_cores()), core_quota()
    return allowed if quota is None else min(allowed, max(1, int(quota)))


def core_quota() -> float | None:
    """How many cores our container may keep busy (`docker run --cpus 1.5`); None without such a limit."""
    with suppress(OSError, ValueError):
        most, period = (CONTROL_GROUPS / "cpu.max").read_text().split()
        return None if most == "max" else int(most) / int(period)
    with suppress(OSError, ValueError):
        most, period = ((CONTROL_GROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return None if int(most) < 0 else int(most) / int(period)
    return None


def busy_seconds(allowed: Collection[int]) -> float | None:
    """Core-seconds that these cores were busy so far, whoever used them; None where the system does not count them.

    In a container with a quota, what everything in the container used: other containers have quotas of their own.
    """
    with suppress(OSError, ValueError, KeyError):
        if core_quota() is not None:
            return _container_seconds()
    with suppress(OSError, ValueError, IndexError):
        wanted = {f"cpu{number}" for number in allowed}
        rows = (line.split() for line in PROC_STAT.read_text().splitlines() if line.startswith("cpu"))
        return sum(int(row[column]) for row in rows if row[0] in wanted for column in _BUSY) / _TICKS_PER_SECOND
    return None


def cores_of_others(seconds: float) -> float | None:
    """How many cores other programs use, on average over so many seconds; None where the system does not count."""
    allowed = allowed_cores()
    before, own, began = busy_seconds(allowed), time.process_time(), time.monotonic()
    time.sleep(seconds)
    after, passed = busy_seconds(allowed), time.monotonic() - began
    if before is None or after is None:
        return None
    return max(0.0, after - before - (time.process_time() - own)) / passed


def _container_seconds() -> float:
    with suppress(OSError):
        lines = (CONTROL_GROUPS / "cpu.stat").read_text().splitlines()
        return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6
    return int((CONTROL_GROUPS / "cpuacct" / "cpuacct.usage").read_text()) / 1e9


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
