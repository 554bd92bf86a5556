"""A folder as a store: files are written under a temporary name and renamed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

from velodrome import files
from velodrome.data.storage.store import CHUNK, File, Staged, Store, sentence


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

    def remove(self, name: str) -> None:
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise sentence(error, self.address(name)) from None


class _StagedBeside(Staged):
    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f".{name}.{secrets.token_hex(6)}.part"
        self._target = folder / name
        self.path.touch()

    def commit(self) -> None:
        try:
            self.path.replace(self._target)
        except OSError as error:
            raise sentence(error, str(self._target)) from None

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
