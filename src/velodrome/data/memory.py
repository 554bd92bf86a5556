"""How much memory may still be taken: by new processes together, and by this one alone."""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from pathlib import Path

import psutil

from velodrome.variables import WORLD

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
#: Limit, use and details of our container's memory, in both generations of control groups.
_CGROUPS = (
    (_V2 / "memory.max", _V2 / "memory.current", _V2 / "memory.stat"),
    (_V1 / "memory.limit_in_bytes", _V1 / "memory.usage_in_bytes", _V1 / "memory.stat"),
)


def available_memory() -> int:
    """Bytes that new processes may take: what the machine has left, within the limit of our container."""
    available = int(psutil.virtual_memory().available)
    for limit, used, details in _CGROUPS:
        try:
            room = int(limit.read_text()) - int(used.read_text())
            # Pages of files that nobody has read lately are given back when somebody needs memory.
            fields = dict(line.split() for line in details.read_text().splitlines())
            room += int(fields.get("inactive_file", 0))
        except (OSError, ValueError):
            continue
        available = min(available, max(0, room))
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


def workers_here() -> int:
    """The largest number of workers of our job that share a host; 1 without a job."""
    try:
        members = json.loads(os.environ.get(WORLD, "[]"))
        return max(Counter(member["host"] for member in members if member["role"] == "worker").values(), default=1)
    except (ValueError, TypeError, KeyError):
        return 1
