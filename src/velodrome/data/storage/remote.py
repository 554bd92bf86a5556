"""Stores behind a network: every wait is limited, and what fails is retried a few times before it is reported.

Files on their way to a store lie in temporary folders; what a killed process left is removed by the next process.
"""

from __future__ import annotations

import builtins
import fcntl
import getpass
import itertools
import math
import os
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from velodrome.data.storage.store import (
    CHUNK,
    PARTIAL,
    REMOTE,
    File,
    Staged,
    StorageError,
    Store,
    partial_name,
    reason_of,
    sentence,
    writing,
)

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


#: Seconds that one answer of a store may take, and how often it is asked.
WAIT_SECONDS = 30.0
ATTEMPTS = 3
PAUSE_SECONDS = 0.5
#: There are no locks; a file that is unfinished for so long was left by a process that was killed.
ABANDONED_SECONDS = 24 * 3600.0

Result = TypeVar("Result")


class RemoteStore(Store):
    """A store behind a network, through its fsspec file system."""

    def __init__(self, url: str, scheme: str) -> None:
        self.url = url.rstrip("/")
        self._scheme = scheme
        self._connected: tuple[Any, str] | None = None

    def list(self) -> list[File]:
        files = [File(name, entry["size"]) for name, entry in self._entries().items() if entry["type"] == "file"]
        return sorted((file for file in files if file.name[:1] not in (".", "")), key=lambda file: file.name)

    def _entries(self) -> Mapping[str, Mapping[str, Any]]:
        """What is directly below the address, by name."""
        def listed(fs: Any, root: str) -> dict[str, Mapping[str, Any]]:
            try:
                return {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in fs.ls(root, detail=True)}
            except FileNotFoundError:
                return {}

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
        return b"".join(self._ranges(name, start, start + length))

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        return self._ranges(name, start, None)

    def _ranges(self, name: str, start: int, end: int | None) -> Iterator[bytes]:
        total = self.size(name)
        if total is None:
            raise StorageError(f"there is no {self.address(name)!r}")
        end = total if end is None else min(end, total)
        while start < end:
            data = self._range(name, start, min(end, start + CHUNK))
            if not data:
                raise StorageError(f"{self.address(name)!r} ends at byte {start:,} of {total:,}")
            start += len(data)
            yield data

    def _range(self, name: str, start: int, end: int) -> bytes:
        def ranged(fs: Any, root: str) -> bytes:
            return bytes(fs.cat_file(f"{root}/{name}", start=start, end=end))

        return self._ask(self.address(name), ranged)

    def stage(self, name: str) -> Staged:
        with writing(self.address(name)):
            return _StagedAway(self, name, self._scratch.path, renames=self._scheme != "s3")

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        for name in self.half_written():
            self.remove(name)
        yield

    def half_written(self) -> builtins.list[str]:
        before = time.time() - ABANDONED_SECONDS
        return sorted(name for name, entry in self._entries().items()
                      if PARTIAL.fullmatch(name) and _changed(entry) < before)

    def remove(self, name: str) -> None:
        def removed(fs: Any, root: str) -> None:
            with suppress(FileNotFoundError):
                fs.rm_file(f"{root}/{name}")

        self._ask(self.address(name), removed)

    def put(self, path: Path, name: str, shown_as: str) -> None:
        """Upload a file under a name; errors call it `shown_as`."""

        def uploaded(fs: Any, root: str) -> None:
            if self._scheme != "s3":
                fs.makedirs(root, exist_ok=True)
                with path.open("rb") as source, fs.open(f"{root}/{name}", "wb") as target:
                    shutil.copyfileobj(source, target, CHUNK)
            else:
                fs.put_file(str(path), f"{root}/{name}")

        # Slow lines are given their time: a megabyte a second at the least.
        self._ask(self.address(shown_as), uploaded, wait=WAIT_SECONDS + path.stat().st_size / 1e6)
        if (stored := self.size(name)) != path.stat().st_size:
            raise StorageError(
                f"{self.address(shown_as)!r} holds {stored or 0:,} bytes of {path.stat().st_size:,}: try again"
            )

    def rename(self, temporary: str, name: str) -> None:
        tries = itertools.count(1)

        def renamed(fs: Any, root: str) -> None:
            source, target, again = f"{root}/{temporary}", f"{root}/{name}", next(tries) > 1
            if again and not fs.exists(source) and fs.exists(target):
                return  # the try before was done, and only its answer was lost
            if self._scheme == "hdfs":
                fs.mv(source, target, overwrite=True)
                return
            # WebHDFS cannot rename over a file: for a moment there is none, and never half a one.
            if fs.exists(target) and fs.exists(source):
                fs.rm_file(target)
            fs.mv(source, target)
            if not fs.exists(target):
                raise OSError(f"{temporary} was not renamed")

        self._ask(self.address(name), renamed)

    def _connection(self) -> tuple[Any, str]:
        if self._connected is None:
            self._connected = connect(self.url, self._scheme, WAIT_SECONDS)
        return self._connected

    def _ask(self, address: str, question: Callable[[Any, str], Result], wait: float | None = None) -> Result:
        """Call the store, with retries, and turn what went wrong into one sentence."""
        reason = ""
        limit = WAIT_SECONDS if wait is None else wait
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _limited(lambda: question(*self._connection()), limit)
            except ConnectError as error:
                raise StorageError(str(error)) from None
            except (FileNotFoundError, PermissionError) as error:
                raise sentence(error, address) from None
            except Exception as error:  # each back end has errors of its own
                reason = reason_of(error)
                if is_refusal(error):
                    raise StorageError(f"no permission for {address!r}: {reason}") from None
                self._connected = None
            if attempt < ATTEMPTS:
                time.sleep(PAUSE_SECONDS * attempt)
        raise StorageError(
            f"{address!r} did not answer in {ATTEMPTS} tries of at most {limit:.0f} s ({reason}): see that the address "
            "is right and the service runs"
        )


def _changed(entry: Mapping[str, Any]) -> float:
    """When a file on HDFS was last changed; other stores have no unfinished files, and no such time."""
    return float(entry.get("modification_time") or entry.get("modificationTime") or math.inf) / 1000


class _StagedAway(Staged):
    def __init__(self, store: RemoteStore, name: str, scratch: Path, *, renames: bool) -> None:
        self._store, self._name = store, name
        self.path = scratch / name
        self.path.touch()
        self._temporary = partial_name(name) if renames else ""
        self._away = False

    def upload(self) -> None:
        if self._temporary:
            self._away = True
            self._store.put(self.path, self._temporary, self._name)
            self.path.unlink()

    def commit(self) -> None:
        if self._temporary:
            self._store.rename(self._temporary, self._name)
            self._away = False
        else:  # an object appears when it is whole
            self._store.put(self.path, self._name, self._name)
            self.path.unlink()

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        if self._away:
            self._away = False
            with suppress(StorageError):
                self._store.remove(self._temporary)


def _limited(call: Callable[[], Result], seconds: float) -> Result:
    """The result of a call, or TimeoutError; a call that never returns stays in its thread."""
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


_WEBHDFS_PORT = 9870


class ConnectError(Exception):
    """What is missing on this machine, as a sentence."""


def connect(url: str, scheme: str, wait: float) -> tuple[Any, str]:
    """The file system behind an address and the path on it."""
    try:
        return {"hdfs": _hdfs, "webhdfs": _webhdfs, "s3": _s3}[scheme](url, wait)
    except ImportError as error:
        extra = REMOTE[scheme]
        raise ConnectError(
            f"{url!r} needs {error.name or 'a package'}, which is not installed: pip install 'velodrome[{extra}]'"
        ) from None


def _hdfs(url: str, wait: float) -> tuple[Any, str]:
    # fsspec's own entry for hdfs:// wants a Java machine and libhdfs; this client wants neither.
    from hdfs_native.fsspec import HdfsFileSystem

    parts = urlsplit(url)
    if parts.hostname and parts.port:  # the client would retry for ever; without a port it is a name service
        socket.create_connection((parts.hostname, parts.port), timeout=min(10.0, wait)).close()
    return HdfsFileSystem(parts.hostname, parts.port, skip_instance_cache=True), parts.path.rstrip("/")


def _webhdfs(url: str, wait: float) -> tuple[Any, str]:
    from velodrome.data.storage.webhdfs import LimitedWebHDFS

    parts = urlsplit(url)
    fs = LimitedWebHDFS(
        parts.hostname or "", parts.port or _WEBHDFS_PORT, wait=wait, skip_instance_cache=True,
        user=parts.username or os.environ.get("HADOOP_USER_NAME") or getpass.getuser(),
    )
    return fs, parts.path.rstrip("/")


def _s3(url: str, wait: float) -> tuple[Any, str]:
    from s3fs import S3FileSystem

    # Endpoint, keys and region are taken from the environment and ~/.aws, as every AWS tool does.
    config = {"connect_timeout": min(10.0, wait), "read_timeout": wait, "retries": {"max_attempts": 2}}
    fs = S3FileSystem(config_kwargs=config, skip_instance_cache=True, use_listings_cache=False)
    parts = urlsplit(url)
    return fs, (parts.netloc + parts.path).rstrip("/")


def is_refusal(error: Exception) -> bool:
    """Whether a store refused permission, so that a retry would not help."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = str(error).lower()
    return status in (401, 403) or "permission denied" in text or "accesscontrolexception" in text
