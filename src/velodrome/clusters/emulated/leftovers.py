"""What a controller that was killed leaves of its emulated cluster: control groups and a folder, found by their names.

Namespaces, interfaces and mounts are not among it: the kernel removes them with the last process in them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PREFIX = "velodrome-"
_FOLDER = "velodrome-nodes-"
_REMOVE_SECONDS = 3.0


def _since(pid: int) -> str:
    """When a process began, by the kernel's count; empty if there is none. A number of a process is used again."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@cache
def _mark(pid: int) -> str:
    return f"{pid}-{_since(pid)}"


def group_name(node: str) -> str:
    """The name of a control group of this controller."""
    return f"{PREFIX}{_mark(os.getpid())}-{node}"


def folder_prefix() -> str:
    """What the name of a temporary folder of this controller begins with."""
    return f"{_FOLDER}{_mark(os.getpid())}-"


def _is_orphan(mark: str) -> bool:
    pid, since = (*mark.split("-"), "")[:2]
    return pid.isdigit() and (not since or _since(int(pid)) != since)


def remove_group(folder: Path) -> None:
    """Remove a control group; its last processes may need a moment to end."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while folder.exists():
        with suppress(OSError):
            folder.rmdir()
            return
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def clean(groups: Path = GROUPS, folders: Path | None = None) -> list[str]:
    """Remove what controllers that are gone have left behind; the names of what was removed."""
    removed = []
    for folder in [*groups.glob(f"{PREFIX}*"), *groups.glob(f"*/{PREFIX}*")]:
        if _is_orphan(folder.name.removeprefix(PREFIX)):
            remove_group(folder)
            removed += [] if folder.exists() else [f"control group {folder.name}"]
    for folder in (folders or Path(tempfile.gettempdir())).glob(f"{_FOLDER}*"):
        if _is_orphan(folder.name.removeprefix(_FOLDER)):
            shutil.rmtree(folder, ignore_errors=True)
            removed += [] if folder.exists() else [f"folder {folder}"]
    return sorted(set(removed))
