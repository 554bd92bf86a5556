"""Temporary folders for files on their way to a store. What a killed process left is removed by the next process."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

_PREFIX = "velodrome-staged-"
#: A folder that was made a moment ago may not be locked yet.
_YOUNG_SECONDS = 60.0


class Scratch:
    """A folder that is locked while its owner lives, and removed with it or when Python ends."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        weakref.finalize(self, _remove, self.path, lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    """Remove folders whose processes are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone already
            if time.time() - path.stat().st_mtime < _YOUNG_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
