"""The cache folder: downloaded files, verified whenever they are read, and arrays that were decoded from data once.

Everything is written atomically by one process at a time. Decoded arrays are mapped by every worker and keyed by what
they were made from: a folder a source, in it one generation at a time. Its name is a checksum, so nothing from outside
becomes a path.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.data.base import Checked, DataError, DTypeLike, NDArray, np

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
    #: Checked whenever the cached payload is read, because it is quick; its sha256 was checked when it was stored. None
    #: for what is read only once, by its sha256.
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


@contextmanager
def storing(what: str, place: Path) -> Iterator[None]:
    """Name what cannot be stored, where and why; `what` is the beginning of a sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{what} cannot be stored in {place} ({_reason(error)}): free some space, or set VELODROME_CACHE to a "
            "folder that can be written"
        ) from error


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
    state = set()
    below = (Path(folder, name) for place in places for folder, _, names in os.walk(place) for name in (".", *names))
    for path in (*places, *below):
        with suppress(OSError):  # it may be gone already
            about = path.stat()
            state.add((str(path), about.st_size, about.st_blocks, about.st_mtime_ns))
    return frozenset(state)


#: Increased when arrays are made differently, so that old ones are rebuilt.
VERSION = 4
_ABOUT = "about.json"
#: Prefix of the folder of arrays that are not complete.
_MAKING = "."
#: Bytes of it; the vocabulary of a text may hold long words.
_LARGEST_ABOUT = 1 << 30


def key_of(options: Iterable[object], files: Iterable[tuple[str, int, int]]) -> str:
    """A name for what is made from these files, by their names, sizes and stamps, with these options."""
    digest = hashlib.sha256(repr((VERSION, *options)).encode("utf-8", "surrogateescape"))
    for name, size, stamp in files:
        digest.update(f"\0{name}\0{size}\0{stamp}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True)
class Decoded:
    """Complete arrays, and the metadata that was stored with them."""

    folder: Path
    #: Metadata, as plain JSON.
    about: dict[str, Any]

    def array(self, name: str) -> NDArray[Any]:
        """An array, memory-mapped; writing to it changes only a private copy."""
        try:
            mapped: NDArray[np.generic] = np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder} cannot be read ({error}): remove it, and it is rebuilt") from None
        return mapped.view(np.ndarray)


def find(source: str, key: str) -> Decoded | None:
    """The arrays of a source under that key, if all are there with the sizes that they had."""
    folder = _home(source) / key[:32]
    try:
        written = files.read_json(folder / _ABOUT, _LARGEST_ABOUT)
        whole = written["key"] == key and all(
            (folder / name).stat().st_size == file["bytes"] for name, file in written["files"].items()
        )
        return Decoded(folder, written["about"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stored_key(source: str) -> str | None:
    """The key of the arrays of a source, for when the source itself is out of reach; None if there are none."""
    for about in sorted(_home(source).glob(f"*/{_ABOUT}")):
        try:
            written = files.read_json(about, _LARGEST_ABOUT)
            if written.get("version", 1) == VERSION and find(source, key := str(written["key"])) is not None:
                return key
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def keep(
    source: str, key: str, make: Callable[[Path], dict[str, Any]], *, also: Path | None = None
) -> Decoded:
    """The arrays of a source, made now if they are missing: `make` writes `.npy` files and returns their metadata.

    `also` is another folder that it writes to, so that waiting processes see its progress.
    """
    if kept := find(source, key):
        return kept
    home = _home(source)
    _sweep(home)
    with storing("decoded data", home), exclusive(home, also):  # a process that waited here may find the work done
        if kept := find(source, key):
            return kept
        for left in home.iterdir():  # earlier generations, and what a killed process left
            if left.is_dir():
                shutil.rmtree(left)
        making = home / f"{_MAKING}{key[:32]}"
        making.mkdir()
        try:
            about = make(making)
            arrays = {file.name: _sum(file) for file in sorted(making.glob("*.npy"))}
            whole = {"version": VERSION, "key": key, "source": source, "about": about, "files": arrays}
            (making / _ABOUT).write_text(json.dumps(whole), encoding="utf-8")
            making.rename(home / key[:32])
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    kept = find(source, key)
    if kept is None:
        raise DataError(f"{home} changes while it is read: another program may be writing there")
    return kept


def _reason(error: OSError) -> str:
    """Why something could not be written. NumPy reports a full disk as "4096 requested and 0 written"."""
    if error.errno is None and str(error).endswith(" written"):
        return os.strerror(errno.ENOSPC)
    return error.strerror or str(error)


def allocate(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """A new `.npy` file as an array of zeros to be filled, with all of its space on the disk: writing to a mapped file
    whose disk is full would end the process by SIGBUS."""
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as stream:
        try:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve
                raise
    return array


def sources(prefix: str) -> list[str]:
    """All sources with this prefix that arrays were made from."""
    names = set()
    for about in (folder() / "decoded").glob(f"*/*/{_ABOUT}"):
        try:
            source = files.read_json(about, _LARGEST_ABOUT)["source"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # arrays without metadata are never used
        if isinstance(source, str) and source.startswith(prefix):
            names.add(source)
    return sorted(names)


def verify(source: str) -> list[Checked]:
    """Every array of a source, compared with its checksum."""
    checked = []
    for about in sorted(_home(source).glob(f"*/{_ABOUT}")):
        try:
            for name, file in files.read_json(about, _LARGEST_ABOUT)["files"].items():
                path = about.parent / name
                state = "missing" if not path.exists() else "ok" if _sum(path) == file else "damaged"
                checked.append(Checked(str(path), state))  # type: ignore[arg-type]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            checked.append(Checked(str(about), "damaged", str(error)))
    return checked


def forget(source: str) -> None:
    """Remove the arrays of a source, so that they are rebuilt."""
    with exclusive(_home(source)):
        for left in _home(source).iterdir():
            if left.is_dir():
                shutil.rmtree(left)


def _sweep(home: Path) -> None:
    """Remove unfinished arrays of other sources that killed processes left."""
    for left in home.parent.glob(f"*/{_MAKING}*/"):
        lock = files.FileLock(left.parent / LOCK)
        with suppress(OSError):
            if left.parent != home and lock.acquire():
                shutil.rmtree(left, ignore_errors=True)
        lock.release()


def _home(source: str) -> Path:
    name = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return folder() / "decoded" / name


def _sum(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
