"""Files under a folder or in a zip archive, read the same way. Nothing is ever unpacked onto the disk.

An archive comes from anywhere: names that lead elsewhere, links, and contents that expand absurdly are refused.
"""

from __future__ import annotations

import errno
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from velodrome.errors import BadRequest, shown
from velodrome.files import check_regular, open_regular

#: Folders within folders, at most.
_DEEPEST = 12
#: How often links may lead to one folder: folders that link to one another would be read forever.
_MOST_VISITS = 16
#: The largest ratio of unpacked to packed size of a file; photographs hardly shrink, text by a factor of ten.
_SWELL = 200
_SMALL = 1 << 20
_UNSEEN = {"__MACOSX", "Thumbs.db", "desktop.ini"}
#: Kinds of faults.
DANGLING = "links that lead nowhere"
OUTSIDE = "links that lead out of the folder (add ?links=follow to the name to follow them)"
UNREADABLE = "files and folders that cannot be read"


@dataclass(frozen=True)
class File:
    """A file by its name below the tree's top, with `/` between folders."""

    name: str
    bytes: int
    #: Changes when the content does or becomes readable: time of change, or checksum.
    stamp: int

    @classmethod
    def of(cls, name: str, path: Path | str, about: os.stat_result) -> File:
        """A file of this machine; a change of permissions does not change its time."""
        return cls(name, about.st_size, about.st_mtime_ns if os.access(path, os.R_OK) else -1)


@dataclass(frozen=True)
class Lost:
    """Something in a folder whose content cannot be read."""

    name: str
    #: The kind of fault that it is.
    what: str
    reason: str


@dataclass
class _Content:
    """What is directly in a folder, by its name there; hidden files left out."""

    files: list[File] = field(default_factory=list)
    #: Folders, and whether each is a link.
    folders: dict[str, bool] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)


class Tree(Protocol):
    @property
    def place(self) -> str:
        """Where it is, for messages and as its identity."""

    @property
    def files(self) -> list[File]:
        """All files, sorted by name; hidden ones left out."""

    @property
    def folders(self) -> list[str]:
        """All folders, sorted, empty ones included."""

    @property
    def lost(self) -> Sequence[Lost]:
        """What cannot be read: links that lead nowhere or out of the tree, and folders without permission."""

    def open(self, name: str) -> IO[bytes]: ...


class FolderTree:
    """A folder. Links within it are followed, each real folder once on a way down and a few times in all; links out of
    it only if asked to."""

    def __init__(self, path: Path, *, follow_links: bool = False) -> None:
        self._top, self._follow = path, follow_links
        self.place = str(path.resolve())

    @cached_property
    def _walked(self) -> tuple[list[File], list[str], list[Lost]]:
        files: list[File] = []
        folders: list[str] = []
        lost: list[Lost] = []
        self._visits = Counter[tuple[int, int]]()
        #: What is in each real folder: links may lead there many times.
        self._listed: dict[tuple[int, int], _Content] = {}
        try:
            self._walk(self._top, "", (), files, folders, lost)
        except OSError as error:
            raise BadRequest(f"cannot read {str(self._top)!r}: {error.strerror or error}") from None
        return (
            sorted(files, key=lambda file: file.name), sorted(folders), sorted(lost, key=lambda entry: entry.name)
        )

    @property
    def files(self) -> list[File]:
        return self._walked[0]

    @property
    def folders(self) -> list[str]:
        return self._walked[1]

    @property
    def lost(self) -> list[Lost]:
        return self._walked[2]

    def open(self, name: str) -> IO[bytes]:
        return open_regular(self._top / name)

    def _walk(
        self, folder: Path, above: str, seen: tuple[tuple[int, int], ...], files: list[File], folders: list[str],
        lost: list[Lost], *, linked: bool = False,
    ) -> None:
        """Add everything below a folder, `seen` being the real folders on the way down to it, if need be by a link."""
        about = folder.stat()
        here = (about.st_dev, about.st_ino)
        if here in seen:
            return
        self._visits[here] += linked
        if linked and self._visits[here] > _MOST_VISITS:
            lost.append(Lost(above[:-1], UNREADABLE, f"links lead to this folder more than {_MOST_VISITS} times"))
            return
        if here not in self._listed:
            self._listed[here] = self._list(folder)
        content = self._listed[here]
        lost += [Lost(above + entry.name, entry.what, entry.reason) for entry in content.lost]
        files += [File(above + file.name, file.bytes, file.stamp) for file in content.files]
        for inner, is_link in content.folders.items():
            name = above + inner
            if len(seen) >= _DEEPEST:
                lost.append(Lost(name, UNREADABLE, f"more than {_DEEPEST} folders deep"))
                continue
            folders.append(name)
            try:
                self._walk(folder / inner, f"{name}/", (*seen, here), files, folders, lost, linked=linked or is_link)
            except OSError as error:
                lost.append(Lost(name, UNREADABLE, error.strerror or str(error)))

    def _list(self, folder: Path) -> _Content:
        content = _Content()
        with os.scandir(os.path.realpath(folder)) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if not entry.name.startswith(".") and entry.name not in _UNSEEN:
                    self._sort(entry, content)
        return content

    def _sort(self, entry: os.DirEntry[str], content: _Content) -> None:
        """Add an entry, with links followed, to what is in its folder."""
        name = entry.name
        try:
            about = entry.stat()
        except OSError as error:
            if not entry.is_symlink():
                content.lost.append(Lost(name, UNREADABLE, error.strerror or str(error)))
                return
            where = "itself" if error.errno == errno.ELOOP else shown(Path(entry.path).readlink())
            content.lost.append(Lost(name, DANGLING, f"to {where}"))
            return
        target = Path(os.path.realpath(entry.path)) if entry.is_symlink() and not self._follow else None
        if target is not None and not target.is_relative_to(self.place):
            content.lost.append(Lost(name, OUTSIDE, f"to {shown(target)}"))
        elif stat.S_ISREG(about.st_mode):
            content.files.append(File.of(name, entry.path, about))
        elif stat.S_ISDIR(about.st_mode):
            content.folders[name] = entry.is_symlink()
        else:
            content.lost.append(Lost(name, UNREADABLE, "neither a file nor a folder"))


class ZipTree:
    """A zip archive, as if its one top folder were not there."""

    #: An archive that holds a link is refused as a whole.
    lost: Sequence[Lost] = ()

    def __init__(self, path: Path) -> None:
        self.place = str(path.resolve())
        try:
            check_regular(path)
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
            raise BadRequest(f"{str(path)!r} is not a readable zip archive: {error}") from None
        self._infos: dict[str, zipfile.ZipInfo] = {}
        folders: set[str] = set()
        for info in self._archive.infolist():
            name = PurePosixPath(_safe_name(info, path))
            if any(part.startswith(".") or part in _UNSEEN for part in name.parts):
                continue
            folders.update(str(above) for above in (name.parents if not info.is_dir() else (name, *name.parents)))
            if not info.is_dir():
                if str(name) in self._infos:
                    raise BadRequest(f"{str(path)!r} holds two files named '{shown(name)}': pack it again")
                self._infos[str(name)] = info
        folders.discard(".")
        top = _only_top(self._infos, folders)
        if top:
            self._infos = {name.removeprefix(top): info for name, info in self._infos.items()}
            folders = {name.removeprefix(top) for name in folders if name.startswith(top)}
        self.folders = sorted(folders)
        self.files = [File(name, info.file_size, info.CRC) for name, info in sorted(self._infos.items())]

    def open(self, name: str) -> IO[bytes]:
        return self._archive.open(self._infos[name])


def _safe_name(info: zipfile.ZipInfo, archive: Path) -> str:
    name = info.filename
    parts = name.split("/")
    wrong = ""
    if "\0" in info.orig_filename:  # Python cuts the name there
        name, wrong = info.orig_filename, "has a NUL character in its name"
    elif "\\" in name:
        wrong = "has a backslash in its name, where some programs of Windows write it for the / between folders"
    elif name.startswith("/") or ":" in parts[0] or ".." in parts:
        wrong = "leads out of the archive"
    elif stat.S_ISLNK(info.external_attr >> 16):
        wrong = "is a link"
    elif info.flag_bits & 1:
        wrong = "is encrypted"
    elif info.file_size > _SMALL and info.file_size > _SWELL * max(1, info.compress_size):
        wrong = f"expands from {info.compress_size:,} to {info.file_size:,} bytes"
    if wrong:
        raise BadRequest(f"{str(archive)!r} is not read: '{shown(name)}' in it {wrong}; pack the images again")
    return name


def _only_top(infos: dict[str, zipfile.ZipInfo], folders: set[str]) -> str:
    tops = {name.partition("/")[0] for name in infos}
    top = tops.pop() if len(tops) == 1 else ""
    return f"{top}/" if top in folders and any(name.startswith(f"{top}/") for name in folders) else ""


def tree_of(path: Path, *, follow_links: bool = False) -> Tree:
    """The tree of a folder or a zip archive."""
    return FolderTree(path, follow_links=follow_links) if path.is_dir() else ZipTree(path)
