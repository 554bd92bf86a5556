"""A script on trial works in a scratch folder, and Python refuses it to write anywhere else."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
#: Operations on paths, and how many of their first arguments are what they change.
_CHANGES = {
    "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.link": 2, "os.symlink": 2,
    "os.chmod": 1, "shutil.rmtree": 1, "shutil.move": 2,
}


def enter(scratch: Path, run: Path) -> None:
    """Make a folder the current one, and refuse from now on to write outside of it, of the run's folder and of those
    that programs keep temporary files and caches in.

    This is an audit hook of Python: what a library writes by itself to an absolute path is not refused.
    """
    os.chdir(scratch)
    sys.dont_write_bytecode = True
    home = os.path.realpath(Path.home())
    allowed = tuple(f"{os.path.realpath(path)}{os.sep}" for path in (
        scratch, run, tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev", "/proc",
        os.environ.get("XDG_CACHE_HOME", "/dev"),
    ))

    def refuse(path: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        if not f"{real}{os.sep}".startswith(allowed) and not real.startswith(f"{home}{os.sep}."):
            raise PermissionError(f"velodrome check lets a script write to its scratch folder only, not to {real!r}")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                refuse(path)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                refuse(path)

    sys.addaudithook(hook)
