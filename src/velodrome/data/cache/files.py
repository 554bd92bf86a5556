"""The cache folder of downloaded files: written atomically by one process at a time, verified whenever read."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from velodrome import files
from velodrome.data.base import DataError

#: How long a process waits for another one that fetches the same data set and makes no progress.
LOCK_SECONDS = 600.0
#: Locked by who fetches into a folder.
LOCK = ".lock"
#: The end of the name of a download that is not complete, which the next try continues.
DOWNLOADING = ".part"

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
    #: Quick enough to be compared whenever the payload is read; cached files were compared by sha256 before. None for
    #: what is read once, which is compared by sha256 then.
    crc32: int | None
    #: Whether the file is an archive that is kept as it is published, gzipped or not.
    archive: bool = False

    @property
    def payload_name(self) -> str:
        return self.name if self.archive else self.name.removesuffix(".gz")


def folder() -> Path:
    """`$VELODROME_CACHE`, or `~/.cache/velodrome`."""
    return Path(os.environ.get("VELODROME_CACHE") or "~/.cache/velodrome").expanduser()


def read(path: Path, file: RemoteFile) -> mmap.mmap | None:
    """The payload, or None if it is not there, was cut short, or is not what was stored.

    It is mapped, not copied: every worker of a host then shares one copy until it takes what it needs.
    """
    try:
        with files.open_regular(path) as stream:
            if os.fstat(stream.fileno()).st_size != file.bytes:
                return None
            payload = mmap.mmap(stream.fileno(), file.bytes, access=mmap.ACCESS_READ)
    except OSError:
        return None
    if file.crc32 is None:
        return payload if hashlib.sha256(payload).hexdigest() == file.sha256 else None
    return payload if zlib.crc32(payload) == file.crc32 else None


def store(path: Path, payload: bytes) -> None:
    """Put a payload in its place at once and whole, while its folder is locked: so the next process overwrites what a
    killed one left."""
    files.write_bytes(path, payload)


def tidy(data_set_folder: Path) -> None:
    """Remove what interrupted downloads and killed processes left of a data set that is complete, while it is locked:
    nobody will continue it."""
    for ending in (DOWNLOADING, files.PARTIAL):
        for left in data_set_folder.glob(f"*{ending}"):  # hidden files too
            with suppress(OSError):
                left.unlink()


@contextmanager
def exclusive(data_set_folder: Path, also: Path | None = None) -> Iterator[None]:
    """Create the folder and lock it while fetching into it; the lock ends with the process, however that ends.

    Other processes wait for as long as anything changes in the folder, or in `also`, where the holder writes too.
    """
    data_set_folder.mkdir(parents=True, exist_ok=True)
    lock = files.FileLock(data_set_folder / LOCK, poll_seconds=0.1)
    if not lock.acquire():
        _wait(lock, data_set_folder, (data_set_folder, also) if also else (data_set_folder,))
    try:
        yield
    finally:
        lock.release()


def _wait(lock: files.FileLock, data_set_folder: Path, watched: tuple[Path, ...]) -> None:
    before = _state(watched)
    while not lock.acquire(LOCK_SECONDS):
        now = _state(watched)
        if now == before:
            raise DataError(
                f"another process has been fetching into {data_set_folder} and has downloaded nothing for "
                f"{LOCK_SECONDS:.0f} s: end it, or set VELODROME_CACHE to another folder"
            )
        before = now


def _state(places: tuple[Path, ...]) -> _State:
    """What changes while a process writes there; blocks and time reveal progress in a file of its final size."""
    found = set()
    below = (Path(folder, name) for place in places for folder, _, names in os.walk(place) for name in (".", *names))
    for path in (*places, *below):
        with suppress(OSError):  # it may be gone already
            about = path.stat()
            found.add((str(path), about.st_size, about.st_blocks, about.st_mtime_ns))
    return frozenset(found)
