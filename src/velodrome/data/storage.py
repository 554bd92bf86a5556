"""Files at an address: a folder, hdfs://, webhdfs:// or s3://, all read and written the same way.

Every wait on a network is limited and tried again a few times; a file appears under its name only when it is whole.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from velodrome.data.base import DataError
from velodrome.data.stores import ConnectError, connect, is_remote, reason_of, split_url

#: Seconds that one answer of a store may take, and how often it is asked.
WAIT_SECONDS = 30.0
ATTEMPTS = 3
PAUSE_SECONDS = 0.5
CHUNK = 8 << 20

Result = TypeVar("Result")


class StorageError(DataError):
    """A store did not give or take a file."""


@dataclass(frozen=True)
class File:
    """A file by its name below the store's address."""

    name: str
    bytes: int


def open_store(url: str) -> Store:
    """The store at an address. Nothing is asked of it yet, so a host that is away is noticed at the first use."""
    scheme, place = split_url(url)
    if not is_remote(scheme):
        return FolderStore(place)
    return RemoteStore(url, scheme)


class Store:
    """What every store can do."""

    url: str
    #: Where the files lie if they lie on this machine.
    folder: Path | None = None

    def address(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def list(self) -> list[File]:
        """The files directly below the address, by name; none if there is no such folder. Hidden ones are left out."""
        raise NotImplementedError

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None if it is not there."""
        raise NotImplementedError

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A file, or a range of it."""
        raise NotImplementedError

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        """A file from a place on, bit by bit."""
        raise NotImplementedError

    def stage(self, name: str) -> Staged:
        """Begin to write a file that appears under its name when it is committed, and not before."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Remove a file; it is no error if there is none."""
        raise NotImplementedError

    def write(self, name: str, data: bytes) -> None:
        """Put a small file in its place at once and whole."""
        staged = self.stage(name)
        try:
            staged.path.write_bytes(data)
            staged.upload()
            staged.commit()
        finally:
            staged.discard()


class Staged:
    """A file in the making: written to `path` on this machine, uploaded, committed; or discarded at any time."""

    path: Path

    def upload(self) -> None:
        """Bring what was written to where one step puts it into its place."""

    def commit(self) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        """Remove what is left of the making. Harmless after a commit."""


class FolderStore(Store):
    """A folder of this machine."""

    def __init__(self, place: str) -> None:
        self.folder: Path = Path(place).expanduser().absolute()
        self.url = str(self.folder)

    def list(self) -> list[File]:
        try:
            entries = [entry for entry in self.folder.iterdir() if not entry.name.startswith(".") and entry.is_file()]
            return sorted((File(entry.name, entry.stat().st_size) for entry in entries), key=lambda file: file.name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _sentence(error, self.url) from None

    def size(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _sentence(error, self.address(name)) from None

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            with (self.folder / name).open("rb") as stream:
                stream.seek(start)
                return stream.read(-1 if length is None else length)
        except OSError as error:
            raise _sentence(error, self.address(name)) from None

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        try:
            with (self.folder / name).open("rb") as stream:
                stream.seek(start)
                while data := stream.read(CHUNK):
                    yield data
        except OSError as error:
            raise _sentence(error, self.address(name)) from None

    def stage(self, name: str) -> Staged:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return _StagedBeside(self.folder, name)
        except OSError as error:
            raise _sentence(error, self.url) from None

    def remove(self, name: str) -> None:
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise _sentence(error, self.address(name)) from None


class _StagedBeside(Staged):
    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f".{name}.{secrets.token_hex(6)}.part"
        self._target = folder / name
        self.path.touch()

    def commit(self) -> None:
        try:
            self.path.replace(self._target)
        except OSError as error:
            raise _sentence(error, str(self._target)) from None

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


class RemoteStore(Store):
    """A store behind a network, through its fsspec file system."""

    def __init__(self, url: str, scheme: str) -> None:
        self.url = url.rstrip("/")
        self._scheme = scheme
        self._connected: tuple[Any, str] | None = None

    def list(self) -> list[File]:
        def listed(fs: Any, root: str) -> list[File]:
            try:
                entries = fs.ls(root, detail=True)
            except FileNotFoundError:
                return []
            files = [File(e["name"].rstrip("/").rpartition("/")[2], e["size"]) for e in entries if e["type"] == "file"]
            return sorted((file for file in files if file.name[:1] not in (".", "")), key=lambda file: file.name)

        return self._ask(self.url, listed)

    def size(self, name: str) -> int | None:
        def sized(fs: Any, root: str) -> int | None:
            try:
                return int(fs.info(f"{root}/{name}")["size"])
            except FileNotFoundError:
                return None

        return self._ask(self.address(name), sized)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            return b"".join(self.chunks(name, start))
        parts, end = [], start + length
        while start < end:
            data = self._range(name, start, min(end, start + CHUNK))
            if not data:
                break
            parts.append(data)
            start += len(data)
        return b"".join(parts)

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        total = self.size(name)
        if total is None:
            raise StorageError(f"there is no {self.address(name)!r}")
        while start < total:
            data = self._range(name, start, min(total, start + CHUNK))
            if not data:
                raise StorageError(f"{self.address(name)!r} ends at byte {start:,} of {total:,}")
            start += len(data)
            yield data

    def _range(self, name: str, start: int, end: int) -> bytes:
        def ranged(fs: Any, root: str) -> bytes:
            return bytes(fs.cat_file(f"{root}/{name}", start=start, end=end))

        return self._ask(self.address(name), ranged)

    def stage(self, name: str) -> Staged:
        return _StagedAway(self, name, renames=self._scheme != "s3")

    def remove(self, name: str) -> None:
        def removed(fs: Any, root: str) -> None:
            with suppress(FileNotFoundError):
                fs.rm_file(f"{root}/{name}")

        self._ask(self.address(name), removed)

    def put(self, path: Path, name: str) -> None:
        """Upload a file under a name, as often as it takes."""

        def uploaded(fs: Any, root: str) -> None:
            if self._scheme != "s3":
                fs.makedirs(root, exist_ok=True)
                with path.open("rb") as source, fs.open(f"{root}/{name}", "wb") as target:
                    shutil.copyfileobj(source, target, CHUNK)
            else:
                fs.put_file(str(path), f"{root}/{name}")

        # Slow lines are given their time: a megabyte a second at the least.
        self._ask(self.address(name), uploaded, wait=WAIT_SECONDS + path.stat().st_size / 1e6)
        if (stored := self.size(name)) != path.stat().st_size:
            raise StorageError(
                f"{self.address(name)!r} holds {stored or 0:,} bytes of {path.stat().st_size:,}: try again"
            )

    def rename(self, beside: str, name: str) -> None:
        def renamed(fs: Any, root: str) -> None:
            if self._scheme == "hdfs":
                fs.mv(f"{root}/{beside}", f"{root}/{name}", overwrite=True)
                return
            # WebHDFS cannot rename over a file: for a moment there is none, and never half a one.
            if fs.exists(f"{root}/{name}") and fs.exists(f"{root}/{beside}"):
                fs.rm_file(f"{root}/{name}")
            fs.mv(f"{root}/{beside}", f"{root}/{name}")
            if not fs.exists(f"{root}/{name}"):
                raise OSError(f"{beside} was not renamed")

        self._ask(self.address(name), renamed)

    def _connection(self) -> tuple[Any, str]:
        if self._connected is None:
            self._connected = connect(self.url, self._scheme, WAIT_SECONDS)
        return self._connected

    def _ask(self, address: str, question: Callable[[Any, str], Result], wait: float | None = None) -> Result:
        """Ask the store, again if it does not answer, and put what went wrong into one sentence."""
        reason = ""
        limit = WAIT_SECONDS if wait is None else wait
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _limited(lambda: question(*self._connection()), limit)
            except ConnectError as error:
                raise StorageError(str(error)) from None
            except (FileNotFoundError, PermissionError) as error:
                raise _sentence(error, address) from None
            except Exception as error:  # each back end has errors of its own
                reason = reason_of(error)
                if "permission denied" in reason.lower():
                    raise StorageError(f"no permission for {address!r}: {reason}") from None
                self._connected = None
            if attempt < ATTEMPTS:
                time.sleep(PAUSE_SECONDS * attempt)
        raise StorageError(
            f"{address!r} did not answer in {ATTEMPTS} tries of at most {limit:.0f} s ({reason}): see that the address "
            "is right and the service runs"
        )


class _StagedAway(Staged):
    def __init__(self, store: RemoteStore, name: str, *, renames: bool) -> None:
        self._store, self._name = store, name
        self._folder = Path(tempfile.mkdtemp(prefix="velodrome-"))
        self.path = self._folder / name
        self.path.touch()
        self._beside = f".{name}.{secrets.token_hex(6)}.part" if renames else ""
        self._away = False

    def upload(self) -> None:
        if self._beside:
            self._away = True
            self._store.put(self.path, self._beside)
            self.path.unlink()

    def commit(self) -> None:
        if self._beside:
            self._store.rename(self._beside, self._name)
            self._away = False
        else:  # an object appears when it is whole
            self._store.put(self.path, self._name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._away:
            self._away = False
            with suppress(StorageError):
                self._store.remove(self._beside)


def _limited(call: Callable[[], Result], seconds: float) -> Result:
    """The result of a call, or TimeoutError; a call that never returns is left behind in its thread."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer for {seconds:.0f} s")
    return results[0]


def _sentence(error: OSError, address: str) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError(f"there is no {address!r}")
    if isinstance(error, PermissionError):
        return StorageError(f"no permission for {address!r}: {reason_of(error)}")
    return StorageError(f"{address!r} cannot be used: {reason_of(error)}")
