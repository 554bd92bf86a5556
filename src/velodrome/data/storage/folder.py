"""A folder as a store: files are written under a temporary name and renamed."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from velodrome import files
from velodrome.data.storage.store import CHUNK, PARTIAL, File, Staged, Store, partial_name, sentence
from velodrome.errors import BadRequest

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
        try:
            entries = [entry for entry in self.folder.iterdir() if not entry.name.startswith(".") and entry.is_file()]
            return sorted((File(entry.name, entry.stat().st_size) for entry in entries), key=lambda file: file.name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise sentence(error, self.url) from None

    def size(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise sentence(error, self.address(name)) from None

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            with files.open_regular(self.folder / name) as stream:
                stream.seek(start)
                return stream.read(-1 if length is None else length)
        except OSError as error:
            raise sentence(error, self.address(name)) from None

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        try:
            with files.open_regular(self.folder / name) as stream:
                stream.seek(start)
                while data := stream.read(CHUNK):
                    yield data
        except OSError as error:
            raise sentence(error, self.address(name)) from None

    def stage(self, name: str) -> Staged:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return _StagedBeside(self.folder, name)
        except OSError as error:
            raise sentence(error, self.url) from None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        try:
            is_new = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = files.FileLock(self.folder / _LOCK)
            held = lock.acquire()
        except OSError as error:
            raise sentence(error, self.url) from None
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
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise sentence(error, self.address(name)) from None


class _StagedBeside(Staged):
    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / partial_name(name)
        self._target = folder / name
        self.path.touch()

    def commit(self) -> None:
        try:
            self.path.replace(self._target)
        except OSError as error:
            raise sentence(error, str(self._target)) from None

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
