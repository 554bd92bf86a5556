"""Reads and atomic writes of files, walks through folders, and inter-process locks, for every package above.

A reader never sees a half-written file, never waits for a pipe and never reads without a limit; a lock never outlives
its process. Folders may have come from elsewhere: they may be nested without end, and hold links and pipes.
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
_ABANDONED_SECONDS = 24 * 3600.0
_PIECE = 1 << 20
#: Folders within folders; ours have three. Python's own walks end in a `RecursionError` after some hundred.
DEEPEST = 50
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK = "it is a link, which is not followed"
_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_regular(
    path: Path | str, largest: int | None = None, *, inside: Path | str | None = None
) -> io.BufferedReader:
    """Open a regular file of at most that many bytes for reading; `OSError`, as ever, if that is impossible.

    Opening a named pipe would wait for a writer, and reading a device may never end: both are errors here. So is a link
    below the folder `inside`, which may have come from elsewhere: it would show any file of whoever reads it.
    """
    descriptor = os.open(path, _FLAGS) if inside is None else _open_inside(path, inside)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise _not_regular(stat.S_IFMT(about.st_mode), path)
        if largest is not None and about.st_size > largest:
            raise _too_large(path, largest, f"{about.st_size:,}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _open_inside(path: Path | str, inside: Path | str) -> int:
    """Open a file below a folder, without following a link on the way from there to it."""
    *above, name = _parts_below(path, inside)
    try:
        if not above:
            return os.open(path, _FLAGS | os.O_NOFOLLOW)
        folder = os.open(inside, _FOLDER)
        try:
            for part, flags in (*((part, _FOLDER) for part in above), (name, _FLAGS)):
                below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=folder)
                folder, passed = below, folder
                os.close(passed)
        except BaseException:
            os.close(folder)
            raise
        return folder
    except OSError as error:
        if is_linked(path, inside):
            raise OSError(errno.ELOOP, _LINK, str(path)) from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def _parts_below(path: Path | str, inside: Path | str) -> tuple[str, ...]:
    """The names that lead from a folder to a path below it."""
    try:
        parts = Path(path).relative_to(inside).parts
    except ValueError:
        parts = ()
    if parts and os.pardir not in parts:
        return parts
    raise OSError(errno.EINVAL, f"it is not inside {str(inside)!r}", str(path))


def is_linked(path: Path | str, inside: Path | str) -> bool:
    """Whether a path below a folder is a link, or leads through one."""
    parts = _parts_below(path, inside)
    return any(Path(inside, *parts[: count + 1]).is_symlink() for count in range(len(parts)))


def check_kind(path: Path) -> None:
    """Raise `OSError` if it is neither a folder nor a regular file; one that has just been removed is fine."""
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind == stat.S_IFLNK:
            raise OSError(errno.ELOOP, _LINK, str(path))
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise _not_regular(kind, path)


def _not_regular(kind: int, path: Path | str) -> OSError:
    return OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", str(path))


def _too_large(path: Path | str, largest: int, size: str) -> OSError:
    return OSError(errno.EFBIG, f"it has {size} bytes, but at most {largest:,} are read", str(path))


def walk(top: Path | str) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As `os.walk`, without following links; `OSError` where folders are nested too deep."""
    above = len(Path(top).parts)
    for place, folders, names in os.walk(top, followlinks=False):
        folder = Path(place)
        if len(folder.parts) - above > DEEPEST:
            raise OSError(errno.ELOOP, f"it has folders that are nested more than {DEEPEST} deep", str(top))
        yield folder, folders, names


def refuse_special(folder: Path | str) -> None:
    """Raise `OSError` if there is anything below a folder but folders and regular files, such as a link or a named
    pipe: for libraries that open or write files themselves."""
    for place, folders, names in walk(folder):
        for name in (*folders, *names):
            check_kind(place / name)


def refuse_special_files(folder: Path | str) -> None:
    """The same for files right in a folder that are about to be written."""
    for entry in os.scandir(folder):
        if not entry.is_dir():
            check_kind(Path(entry))


def check_regular(path: Path | str, *, inside: Path | str | None = None) -> None:
    """Raise `OSError` unless it is a regular file that can be read: for libraries that open files themselves."""
    open_regular(path, inside=inside).close()


def read_bytes(path: Path | str, largest: int, *, inside: Path | str | None = None) -> bytes:
    """The content of a regular file of at most that many bytes."""
    content = bytearray()
    with open_regular(path, largest, inside=inside) as stream:
        # In pieces, because memory for all that is asked for at once would be taken before anything is read.
        while piece := stream.read(min(_PIECE, largest + 1 - len(content))):
            content += piece
    if len(content) > largest:
        raise _too_large(path, largest, f"more than {largest:,}")
    return bytes(content)


def read_text(
    path: Path | str, largest: int, *, errors: str = "strict", inside: Path | str | None = None
) -> str:
    """The text of a regular UTF-8 file of at most that many bytes."""
    return read_bytes(path, largest, inside=inside).decode("utf-8", errors)


def read_json(path: Path | str, largest: int, *, inside: Path | str | None = None) -> Any:
    """What a JSON file of at most that many bytes holds; `ValueError`, and no other, if it holds no JSON."""
    try:
        return json.loads(read_bytes(path, largest, inside=inside))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_lines(path: Path | str, longest: int, *, inside: Path | str | None = None) -> Iterator[str]:
    """Yield the lines of a regular UTF-8 file, up to one of more than `longest` bytes: that is an `OSError`."""
    return (line for _, line in numbered_lines(path, longest, inside=inside))


def numbered_lines(path: Path | str, longest: int, *, inside: Path | str | None = None) -> Iterator[tuple[int, str]]:
    """As `read_lines`, with the number of each line; blank lines are counted and left out, many of them at once."""
    with open_regular(path, inside=inside) as stream:
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


def version_of(path: Path | str) -> tuple[int, int, int] | None:
    """What distinguishes the content of a file that is only ever replaced as a whole; None if it is not there.

    It is the same for all contents of a file that nobody can look at.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


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
    if partial.is_symlink() or partial.is_fifo():  # whoever sent the folder wants another file to be written, or us
        partial.unlink()  # to wait for a reader
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

    def __init__(self, path: Path, *, poll_seconds: float = 0.02) -> None:
        import filelock  # here, because it takes a twentieth of a second and most commands lock nothing

        self.path = path
        # Who opened a run may close it from another thread.
        self._lock = filelock.FileLock(path, thread_local=False, poll_interval=poll_seconds)

    def acquire(self, seconds: float = 0.0) -> bool:
        """Lock the file within a time, creating it if need be; False if another process held it for that long.

        A file that its holder removed between our opening and our locking it is opened again.
        """
        try:
            self._lock.acquire(timeout=seconds)
        except TimeoutError:
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


class HeldFolder:
    """A folder that is kept open, so that it is noticed when its path leads to another one, or to none."""

    def __init__(self, path: Path) -> None:
        #: Also as it was at first: a link on the way, or the working directory, may be changed.
        self._paths = (path, path.resolve())
        #: Whether it was a link then: one that takes its place later is not followed by those who read the folder.
        self._linked = path.is_symlink()
        self._descriptor: int | None = os.open(path, _FOLDER)

    def is_in_place(self) -> bool:
        """Whether the folder is still where it was opened; what cannot be known counts as such."""
        if self._descriptor is None:
            return True
        own = os.fstat(self._descriptor)
        try:
            return all(os.path.samestat(path.stat(), own) for path in self._paths) and (
                self._paths[0].is_symlink() == self._linked)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP)

    def has(self, name: str, descriptor: int) -> bool:
        """Whether a file opened in the folder still has its name there; what cannot be known counts as such."""
        try:
            named = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ESTALE)
        return os.path.samestat(named, os.fstat(descriptor))

    def remove(self, name: str) -> None:
        """Remove a file of the folder, wherever the folder is now."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on that file; False if there is none.

    `filelock` can only ask by acquiring, which needs write permission and creates the file. A shared lock on a file
    opened for reading needs neither, and a process that wants the lock at this very moment tries again.
    """
    try:
        with open_regular(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
