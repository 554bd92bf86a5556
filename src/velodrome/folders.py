"""Walks through folders that may have come from elsewhere: they may be nested without end, and hold links and pipes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from velodrome import files

#: Folders within folders; ours have three. Python's own walks end in a `RecursionError` after some hundred.
DEEPEST = 50


def walk(top: Path | str) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As `os.walk`, without following links; `OSError` where folders are nested too deep."""
    above = len(Path(top).parts)
    for place, folders, names in os.walk(top, followlinks=False):
        folder = Path(place)
        if len(folder.parts) - above > DEEPEST:
            raise OSError(errno.ELOOP, f"it has folders that are nested more than {DEEPEST} deep", str(top))
        yield folder, folders, names


def refuse_special(folder: Path | str) -> None:
    """Raise `OSError` if there is anything below a folder but folders and regular files, such as a link or a named
    pipe: for libraries that open or write files themselves."""
    for place, folders, names in walk(folder):
        for name in (*folders, *names):
            files.check_kind(place / name)


def refuse_special_files(folder: Path | str) -> None:
    """The same for files right in a folder that are about to be written."""
    for entry in os.scandir(folder):
        if not entry.is_dir():
            files.check_kind(Path(entry))
