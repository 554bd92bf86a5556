"""The interface of stores: files at an address, read and written the same way wherever they are.

A file appears under its name only when it is complete.
"""

from __future__ import annotations

import builtins
import errno
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from velodrome.data.base import DataError
from velodrome.data.storage.backends import reason_of

#: Bytes that are read at a time.
CHUNK = 8 << 20
#: How a file is named until it is complete.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{12}\.part")


def partial_name(name: str) -> str:
    """A name beside that of a file, for while it is written."""
    return f".{name}.{secrets.token_hex(6)}.part"


class StorageError(DataError):
    """A store did not give or take a file."""


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
        """A file from a place on, bit by bit."""

    @abstractmethod
    def stage(self, name: str) -> Staged:
        """Begin to write a file that appears under its name when it is committed, and not before."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; it is no error if there is none."""

    def exclusive(self) -> AbstractContextManager[object]:
        """A context in which no other process writes here; refused if one does. Stores without locks promise nothing.

        What a process that was killed left half written is removed at its beginning.
        """
        return nullcontext()

    def half_written(self) -> builtins.list[str]:
        """Names of what processes that were killed left half written, where that can be known."""
        return []

    def write(self, name: str, data: bytes) -> None:
        """Put a small file in its place at once and whole."""
        staged = self.stage(name)
        try:
            with writing(self.address(name)):
                staged.path.write_bytes(data)
            staged.upload()
            staged.commit()
        finally:
            staged.discard()


class Staged(ABC):
    """A file in the making: written to `path` on this machine, uploaded, committed; or discarded at any time."""

    path: Path

    def upload(self) -> None:  # noqa: B027 (where it was written may be there already)
        """Bring what was written to where one step puts it into its place."""

    @abstractmethod
    def commit(self) -> None:
        """Let it appear under its name, in one step."""

    def discard(self) -> None:  # noqa: B027
        """Remove what is left of the making. Harmless after a commit."""


@contextmanager
def writing(address: str) -> Iterator[None]:
    """Name the file in errors of the file system, which for a full disk names none."""
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
