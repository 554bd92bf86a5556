"""Atomic file writes and inter-process locks, for every package above.

A reader never sees a half-written file, and a lock never outlives its process.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: The end of a temporary file's name: `velodrome runs check` reports those that a killed process left behind.
PARTIAL = ".half"
_POLL_SECONDS = 0.02


@contextmanager
def atomic_path(path: Path, *, sync: bool = False, shared: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path`, which replaces `path` at the end; on any error nothing is left behind.

    `sync` forces the content to the disk before the file appears under its name. `shared` is for files that several
    processes may write at once; otherwise the name is fixed, so that the next writer overwrites what a killed one left.
    Errors of the file system name `path`, also where the operating system names no file (a full disk).
    """
    unique = f".{path.name}.{secrets.token_hex(6)}" if shared else path.name
    partial = path.with_name(unique + PARTIAL)
    try:
        yield partial
        if sync:
            with partial.open("rb") as written:
                os.fsync(written.fileno())
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(partial), partial):
            error.filename, error.filename2 = str(path), None
        raise


def write_bytes(path: Path, content: bytes, *, sync: bool = False, shared: bool = False) -> None:
    """Write a file so that it is there in full or not at all."""
    with atomic_path(path, sync=sync, shared=shared) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str, *, sync: bool = True, shared: bool = False) -> None:
    """Write a text as UTF-8 so that it is there in full or not at all."""
    write_bytes(path, text.encode(), sync=sync, shared=shared)


class FileLock:
    """An exclusive lock between processes, on a file. The operating system releases it when its holder ends or dies."""

    def __init__(self, path: Path, *, poll_seconds: float = _POLL_SECONDS) -> None:
        import filelock  # here, because it takes a twentieth of a second and most commands lock nothing

        self.path = path
        # Who opened a run may close it from another thread.
        self._lock = filelock.FileLock(path, thread_local=False, poll_interval=poll_seconds)

    def acquire(self, seconds: float = 0.0) -> bool:
        """Lock the file within a time, creating it if need be; False if another process held it for that long.

        A file that its holder removed between our opening and our locking it is opened again.
        """
        import filelock

        try:
            self._lock.acquire(timeout=seconds)
        except filelock.Timeout:
            return False
        return True

    def release(self, *, remove: bool = False) -> None:
        """Unlock, if it is locked; `remove` the file first, while nobody else can hold it."""
        if self._lock.is_locked:
            with suppress(OSError):
                if remove:
                    self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self._lock.release()


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on that file; False if there is none.

    By hand, because `filelock` can only ask by acquiring, which needs write permission and creates the file. A shared
    lock on a file opened for reading needs neither, and readers do not block each other. A process that acquires the
    lock at this very moment tries again, see `FileLock.acquire`.
    """
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
