"""Stores: files at an address, read and written the same way in a folder and behind a network.

A file appears under its name only when it is complete: in a folder it is written under a temporary name and renamed.
"""

from __future__ import annotations

import builtins
import errno
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from velodrome import files
from velodrome.data.base import DataError
from velodrome.errors import BadRequest

#: Bytes that are read at a time.
CHUNK = 8 << 20
#: How a file is named until it is complete.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{12}\.part")


def partial_name(name: str) -> str:
    """A name beside that of a file, for while it is written."""
    return f".{name}.{secrets.token_hex(6)}.part"


class StorageError(DataError):
    """A store could not read or write a file."""


@dataclass(frozen=True)
class File:
    """A file by its name below the store's address."""

    name: str
    bytes: int


class Store(ABC):
    """What every store can do."""

    url: str
    #: Where the files lie if they lie on this machine.
    folder: Path | None = None

    def address(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    @abstractmethod
    def list(self) -> list[File]:
        """The files directly below the address, by name; none if there is no such folder. Hidden ones are left out."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file, or None if it is not there."""

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A file, or a range of it."""

    @abstractmethod
    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        """A file from byte `start` on, in chunks."""

    @abstractmethod
    def stage(self, name: str) -> Staged:
        """Begin to write a file that appears under its name when it is committed, and not before."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; it is no error if there is none."""

    def exclusive(self) -> AbstractContextManager[object]:
        """A context in which no other process writes here; refused if one does. Stores without locks promise nothing.

        Unfinished files that killed processes left are removed first.
        """
        return nullcontext()

    def half_written(self) -> builtins.list[str]:
        """Names of unfinished files that killed processes left, where that can be known."""
        return []

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        staged = self.stage(name)
        try:
            with writing(self.address(name)):
                staged.path.write_bytes(data)
            staged.upload()
            staged.commit()
        finally:
            staged.discard()


class Staged(ABC):
    """A file that is being written: to `path` on this machine, then uploaded, then committed; or discarded."""

    path: Path

    def upload(self) -> None:  # noqa: B027 (where it was written may be there already)
        """Bring what was written to the store, under a temporary name."""

    @abstractmethod
    def commit(self) -> None:
        """Make the file appear under its name, in one step."""

    def discard(self) -> None:  # noqa: B027
        """Remove temporary files. Harmless after a commit."""


@contextmanager
def writing(address: str) -> Iterator[None]:
    """Name the file in errors of the file system, which for a full disk do not name one."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{address!r} cannot be written: {reason_of(error)}; free some space, or choose another place"
            if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"{address!r} cannot be written: {reason_of(error)}"
        ) from error


def sentence(error: OSError, address: str) -> StorageError:
    """A file-system error about an address, as a sentence."""
    if isinstance(error, FileNotFoundError):
        return StorageError(f"there is no {address!r}")
    if isinstance(error, PermissionError):
        return StorageError(f"no permission for {address!r}: {reason_of(error)}")
    return StorageError(f"{address!r} cannot be used: {reason_of(error)}")


@contextmanager
def using(address: str) -> Iterator[None]:
    """Turn what the file system raises about an address into a sentence."""
    try:
        yield
    except OSError as error:
        raise sentence(error, address) from None


#: Locked while a process writes a set of shards.
_LOCK = ".writing.lock"


class FolderStore(Store):
    """A folder of this machine."""

    def __init__(self, place: str) -> None:
        try:
            self.folder: Path = Path(place).expanduser().absolute()
        except RuntimeError:
            raise BadRequest(f"{place!r} is no folder: there is no such user") from None
        self.url = str(self.folder)

    def list(self) -> list[File]:
        with using(self.url), suppress(FileNotFoundError):
            entries = [entry for entry in self.folder.iterdir() if not entry.name.startswith(".") and entry.is_file()]
            return sorted((File(entry.name, entry.stat().st_size) for entry in entries), key=lambda file: file.name)
        return []

    def size(self, name: str) -> int | None:
        with using(self.address(name)), suppress(FileNotFoundError, NotADirectoryError):
            return (self.folder / name).stat().st_size
        return None

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with using(self.address(name)), files.open_regular(self.folder / name) as stream:
            stream.seek(start)
            return stream.read(-1 if length is None else length)

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        with using(self.address(name)), files.open_regular(self.folder / name) as stream:
            stream.seek(start)
            while data := stream.read(CHUNK):
                yield data

    def stage(self, name: str) -> Staged:
        with using(self.url):
            self.folder.mkdir(parents=True, exist_ok=True)
            return _StagedBeside(self.folder, name)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with using(self.url):
            is_new = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = files.FileLock(self.folder / _LOCK)
            held = lock.acquire()
        if not held:
            raise BadRequest(
                f"another process is writing to {self.url!r}: wait until it has ended, or choose another place"
            )
        try:
            for name in self._partial():
                self.remove(name)
            yield
        finally:
            lock.release(remove=True)
            if is_new:
                with suppress(OSError):  # nothing was written
                    self.folder.rmdir()

    def half_written(self) -> builtins.list[str]:
        return [] if files.is_locked(self.folder / _LOCK) else self._partial()

    def _partial(self) -> builtins.list[str]:
        try:
            return sorted(entry.name for entry in self.folder.iterdir() if PARTIAL.fullmatch(entry.name))
        except OSError:
            return []

    def remove(self, name: str) -> None:
        with using(self.address(name)):
            (self.folder / name).unlink(missing_ok=True)


class _StagedBeside(Staged):
    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / partial_name(name)
        self._target = folder / name
        self.path.touch()

    def commit(self) -> None:
        with using(str(self._target)):
            self.path.replace(self._target)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


def open_store(url: str) -> Store:
    """The store at an address. It is not contacted yet, so an unreachable host is noticed at the first use."""
    scheme, place = split_url(url)
    if scheme not in REMOTE:
        return FolderStore(place)
    from velodrome.data.storage.remote import RemoteStore

    return RemoteStore(url, scheme)


#: Scheme, and the extra that installs what it needs.
REMOTE = {"hdfs": "hdfs", "webhdfs": "hdfs", "s3": "s3"}


def split_url(url: str) -> tuple[str, str]:
    """The scheme of an address, `file` for a folder, and the path of a folder."""
    scheme, colon, rest = url.partition("://")
    if not url:
        raise BadRequest("'' is not an address: give a folder, hdfs://host:port/path, webhdfs://… or s3://bucket/path")
    if "\0" in url:
        raise BadRequest(f"{url!r} is not an address: it has a NUL character")
    if not colon:
        return "file", url
    scheme = scheme.lower()
    if scheme == "file":
        if not rest.startswith("/"):
            raise BadRequest(f"{url!r} is not the address of a file: write three slashes, as in file:///data/shards")
        return scheme, rest
    if scheme not in REMOTE:
        known = ", ".join(f"{name}://" for name in ("file", *REMOTE))
        raise BadRequest(f"{url!r}: no kind of store {scheme!r}; give a folder or an address with {known}")
    parts = urlsplit(url)
    try:
        host, path, _ = parts.hostname, parts.path, parts.port
    except ValueError as error:
        raise BadRequest(f"{url!r} is not an address: {error}") from None
    if not host or (scheme != "s3" and not path):
        shape = "s3://bucket/path" if scheme == "s3" else f"{scheme}://host:port/path"
        raise BadRequest(f"{url!r} is not a complete address: write it as {shape}")
    return scheme, path


def reason_of(error: BaseException) -> str:
    """The message of an error, as the end of a sentence: one line, without the noise of its back end."""
    text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    text = text.replace("\\n", "\n").replace('\\"', '"')
    if plain := re.search(r"\[Errno -?\d+\] ([^\'\"()]+)|(Permission denied: [^\n]+)|RPCError\(\S+ \"([^\n]+)", text):
        text = next(group for group in plain.groups() if group)
    text = re.split(r"\s+at [\w.$]+\(| for url: ", text)[0]
    text = re.sub(r"\s+", " ", text).strip(" .:")
    return text if len(text) <= 160 else f"{text[:160]}…"
