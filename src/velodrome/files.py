"""Reads and atomic writes of files, and inter-process locks, for every package above.

A reader never sees a half-written file, never waits for a pipe and never reads without a limit; a lock never outlives
its process.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import io
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: The end of a temporary file's name: `velodrome runs check` reports those that a killed process left behind.
PARTIAL = ".half"
_POLL_SECONDS = 0.02
_ABANDONED_SECONDS = 24 * 3600.0
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: Path | str, largest: int | None = None) -> io.BufferedReader:
    """Open a regular file of at most that many bytes for reading; `OSError`, as ever, if that is impossible.

    Opening a named pipe would wait for a writer, and reading a device may never end: both are errors here.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            kind = _KINDS.get(stat.S_IFMT(about.st_mode), "something else")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        if largest is not None and about.st_size > largest:
            raise _too_large(path, largest, f"{about.st_size:,}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _too_large(path: Path | str, largest: int, size: str) -> OSError:
    return OSError(errno.EFBIG, f"it has {size} bytes, and at most {largest:,} are read", str(path))


def check_regular(path: Path | str) -> None:
    """Raise `OSError` unless it is a regular file that can be read: for libraries that open files themselves."""
    open_regular(path).close()


def read_bytes(path: Path | str, largest: int) -> bytes:
    """The content of a regular file of at most that many bytes."""
    content = bytearray()
    with open_regular(path, largest) as stream:
        # In pieces, because memory for all that is asked for at once would be taken before anything is read.
        while piece := stream.read(min(_PIECE, largest + 1 - len(content))):
            content += piece
    if len(content) > largest:
        raise _too_large(path, largest, f"more than {largest:,}")
    return bytes(content)


def read_text(path: Path | str, largest: int, *, errors: str = "strict") -> str:
    """The text of a regular UTF-8 file of at most that many bytes."""
    return read_bytes(path, largest).decode("utf-8", errors)


def read_json(path: Path | str, largest: int) -> Any:
    """What a JSON file of at most that many bytes holds; `ValueError`, and no other, if it holds no JSON."""
    try:
        return json.loads(read_bytes(path, largest))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_lines(path: Path | str, longest: int) -> Iterator[str]:
    """Yield the lines of a regular UTF-8 file, up to one of more than `longest` bytes: that is an `OSError`."""
    return (line for _, line in numbered_lines(path, longest))


def numbered_lines(path: Path | str, longest: int) -> Iterator[tuple[int, str]]:
    """As `read_lines`, with the number of each line; blank lines are counted and left out, many of them at once."""
    with open_regular(path) as stream:
        number = 0
        while line := stream.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise OSError(errno.EFBIG, f"its line {number:,} has more than {longest:,} bytes", str(path))
            if not line.isspace():
                yield number, line.decode("utf-8", "replace")
                continue
            ahead = stream.peek()
            blank = stream.read(len(ahead) - len(ahead.lstrip()))
            number += blank.count(b"\n")


def sha256_of(path: Path | str) -> str:
    """The checksum of a regular file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def atomic_path(path: Path, *, sync: bool = False, shared: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path`, which replaces `path` at the end; on any error nothing is left behind.

    `sync` forces the content to the disk before the file appears under its name. `shared` is for files that several
    processes may write at once; otherwise the name is fixed, so that the next writer overwrites what a killed one left.
    Errors of the file system name `path`, also where the operating system names no file (a full disk).
    """
    if shared:
        _remove_abandoned(path)
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


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed left of a shared file; one that is being written changes all the time."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()


def write_bytes(path: Path, content: bytes, *, sync: bool = False, shared: bool = False) -> None:
    """Write a file so that it is there in full or not at all."""
    with atomic_path(path, sync=sync, shared=shared) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str, *, sync: bool = True, shared: bool = False) -> None:
    """Write a text as UTF-8 so that it is there in full or not at all."""
    write_bytes(path, encoded(text), sync=sync, shared=shared)


def encoded(text: str) -> bytes:
    """A text as UTF-8; half a surrogate, which a name from outside may hold and UTF-8 may not, is escaped."""
    return text.encode("utf-8", "backslashreplace")


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
        with open_regular(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
