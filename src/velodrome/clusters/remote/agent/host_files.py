"""Files between controller and host: what is sent, unpacked, and brought back."""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from velodrome.clusters.remote.agent.streams import CHUNK, Header

Send = Callable[[Header, bytes], None]
_INCOMPLETE = (".part", ".tmp")


class HostFiles:
    """The files below the agent's root, and which of those of runs the controller has."""

    def __init__(self, root: Path, send: Send) -> None:
        self.root, self._send = root, send
        #: Size and time of the files that the controller has.
        self._sent: dict[Path, tuple[int, int]] = {}
        #: Folder and patterns by the token of the run.
        self._watched: dict[str, tuple[Path, list[str]]] = {}
        #: Held while files are sent, by the watching thread or for a request: the chunks of a file stay together.
        self._sending = threading.Lock()

    def has(self, header: Header, body: bytes) -> Header:
        """Where a path below the root lies, and whether it is there."""
        path = self.root / header["path"]
        if header.get("use"):  # what is used stays
            with suppress(OSError):
                os.utime(path)
        return {"path": str(path), "there": path.exists()}

    def put(self, header: Header, body: bytes) -> Header:
        """Append bytes to a file, which gets its name with the last of them."""
        path = self.root / header["path"]
        partial = path.with_name(f"{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("ab" if header["at"] else "wb") as stream:
                stream.write(body)
            if header["last"]:
                partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
        return {"path": str(path)}

    def unpack(self, header: Header, body: bytes) -> Header:
        """Unpack a tar file into a new folder, in full or not at all; nothing to do if the folder is there."""
        target, source = self.root / header["to"], self.root / header["path"]
        if not target.is_dir():
            partial = target.with_name(f"{target.name}.part{os.getpid()}")
            try:
                with tarfile.open(source) as archive:
                    _extract(archive, partial)
                partial.rename(target)
            except (OSError, ValueError, tarfile.TarError):
                shutil.rmtree(partial, ignore_errors=True)
                if not target.is_dir():  # another session may have been faster
                    raise
        source.unlink(missing_ok=True)
        return {"path": str(target)}

    def known(self, header: Header, body: bytes) -> None:
        """Note that the controller has the files of a run's folder as they are now."""
        self._sent.update(_complete(Path(header["folder"]), ["**/*"]))

    def watch(self, header: Header, body: bytes) -> None:
        """Send files of a run whenever they are new or changed: checkpoints, which must not be lost with the host."""
        self._watched[header["token"]] = (Path(header["folder"]), header["patterns"])

    def forget(self, token: str) -> None:
        self._watched.pop(token, None)

    def send_watched(self) -> None:
        for token, (folder, patterns) in list(self._watched.items()):
            with suppress(OSError), self._sending:
                if token in self._watched:  # it may have been forgotten meanwhile
                    self._send_new(token, folder, patterns)

    def collect(self, header: Header, body: bytes) -> Header:
        """Send all files of a run that the controller does not have."""
        self.forget(header["token"])
        with self._sending:
            return {"files": self._send_new(header["token"], Path(header["folder"]), ["**/*"])}

    def _send_new(self, token: str, folder: Path, patterns: Iterable[str]) -> int:
        count = 0
        for path, stamp in sorted(_complete(folder, patterns).items()):
            if self._sent.get(path) == stamp:
                continue
            try:
                self._send_file(token, path, str(path.relative_to(folder)))
            except FileNotFoundError:  # an old checkpoint that was dropped meanwhile
                continue
            self._sent[path] = stamp
            count += 1
        return count

    def _send_file(self, token: str, path: Path, name: str) -> None:
        at = 0
        with path.open("rb") as stream:
            while True:
                data = stream.read(CHUNK)
                self._send({"is": "file", "run": token, "name": name, "at": at, "last": not data}, data)
                if not data:
                    return
                at += len(data)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the files of an archive below a folder; `ValueError` if it holds anything else, such as a link.

    The extraction filters of `tarfile` do the same, and Python 3.11 has them only from 3.11.4 on.
    """
    folder.mkdir(parents=True)
    for member in archive:
        name = PurePosixPath(member.name)
        stream = archive.extractfile(member) if member.isreg() else None
        if stream is None or name.is_absolute() or ".." in name.parts:
            raise ValueError(f"the archive holds {member.name!r}, which is no plain file below its folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with stream, path.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _complete(folder: Path, patterns: Iterable[str]) -> dict[Path, tuple[int, int]]:
    """Regular files below a folder that are not being written, with size and time."""
    stamps = {}
    for pattern in patterns:
        for path in folder.glob(pattern):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and path.suffix not in _INCOMPLETE:
                    about = path.stat()
                    stamps[path] = (about.st_size, about.st_mtime_ns)
    return stamps
