"""Where fetched files stay: written beside and renamed, one fetching process at a time, checked whenever read."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from velodrome.data.base import DataError

#: How long one process waits for another that is fetching the same data set and brings nothing.
LOCK_SECONDS = 600.0

_State = frozenset[tuple[str, int, int, int]]


@dataclass(frozen=True)
class RemoteFile:
    """A publisher's gzipped file, and what is inside. The payload's sha256 decides whether a file is the right one."""

    #: The official name of the gzipped file; the cache keeps the payload, under that name without `.gz`.
    name: str
    gz_bytes: int
    gz_md5: str
    bytes: int
    sha256: str
    #: Quick enough to be compared whenever the payload is read; cached files were compared by sha256 before.
    crc32: int

    @property
    def payload_name(self) -> str:
        return self.name.removesuffix(".gz")


def folder() -> Path:
    """`$VELODROME_CACHE`, or `~/.cache/velodrome`."""
    return Path(os.environ.get("VELODROME_CACHE") or "~/.cache/velodrome").expanduser()


def read(path: Path, file: RemoteFile) -> mmap.mmap | None:
    """The payload, or None if it is not there, was cut short, or is not what was stored.

    It is mapped, not copied: every worker of a host then shares one copy until it takes what it needs.
    """
    try:
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size != file.bytes:
                return None
            payload = mmap.mmap(stream.fileno(), file.bytes, access=mmap.ACCESS_READ)
    except OSError:
        return None
    return payload if zlib.crc32(payload) == file.crc32 else None


def store(path: Path, payload: bytes) -> None:
    """Put a payload in its place at once and whole."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, 0o644)
            stream.write(payload)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


@contextmanager
def alone(data_set_folder: Path, also: Path | None = None) -> Iterator[None]:
    """Make the folder and hold it while fetching into it; the lock falls when the process ends, however it ends.

    Who waits for it does so as long as anything in the folder changes, or in `also`, where its holder writes too.
    """
    data_set_folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(data_set_folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, data_set_folder, (data_set_folder, also) if also else (data_set_folder,))
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _lock(descriptor: int, data_set_folder: Path, watched: tuple[Path, ...]) -> None:
    end = time.monotonic() + LOCK_SECONDS
    before: _State | None = None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            before = _state(watched) if before is None else before
            if time.monotonic() > end:
                now = _state(watched)
                if now == before:
                    raise DataError(
                        f"another process has been fetching into {data_set_folder} and has brought nothing for "
                        f"{LOCK_SECONDS:.0f} s: end it, or set VELODROME_CACHE to another folder"
                    ) from None
                end, before = time.monotonic() + LOCK_SECONDS, now
            time.sleep(0.1)


def _state(places: tuple[Path, ...]) -> _State:
    """What changes while somebody writes there; blocks and time tell of a file that has its full size at once."""
    found = set()
    below = (Path(folder, name) for place in places for folder, _, names in os.walk(place) for name in (".", *names))
    for path in (*places, *below):
        with suppress(OSError):  # it may be gone already
            about = path.stat()
            found.add((str(path), about.st_size, about.st_blocks, about.st_mtime_ns))
    return frozenset(found)
