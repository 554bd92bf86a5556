"""Cache of decoded data: arrays on disk that every worker maps, keyed by what they were made from.

A folder a source, in it one generation at a time. Its name is a checksum, so nothing from outside becomes a path.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome import files
from velodrome.data.base import Checked, DataError
from velodrome.data.cache import files as cache

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

#: Increased when arrays are made differently, so that old ones are rebuilt.
VERSION = 3
_ABOUT = "about.json"
#: What the name of a generation begins with until it is complete.
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
        import numpy as np

        try:
            mapped: NDArray[np.generic] = np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder} cannot be read ({error}): remove it, and it is rebuilt") from None
        return mapped.view(np.ndarray)


def find(source: str, key: str) -> Decoded | None:
    """What was made from a source under that key, if it is there and as long as it was."""
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
    """The key of what was made from a source, for when the source itself is out of reach; None if there is nothing."""
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
    """What was made from a source, made now if it is missing: `make` writes `.npy` files and returns their metadata.

    `also` is another folder that it writes to, so that waiting processes see its progress.
    """
    if found := find(source, key):
        return found
    home = _home(source)
    _sweep(home)
    try:
        with cache.exclusive(home, also):  # a process that waited here may find the work done
            if found := find(source, key):
                return found
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
    except OSError as error:
        raise DataError(
            f"decoded data cannot be stored in {home} ({_reason(error)}): free some space, or set "
            "VELODROME_CACHE to a folder that can be written"
        ) from error
    found = find(source, key)
    if found is None:
        raise DataError(f"{home} changes while it is read: see what else writes there")
    return found


def _reason(error: OSError) -> str:
    """Why something could not be written. NumPy reports a full disk as "4096 requested and 0 written"."""
    if error.errno is None and str(error).endswith(" written"):
        return os.strerror(errno.ENOSPC)
    return error.strerror or str(error)


def allocate(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """A new `.npy` file as an array of zeros to be filled, with all of its space on the disk: writing to a mapped file
    whose disk is full would end the process by SIGBUS."""
    import numpy as np

    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as stream:
        try:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve
                raise
    return array


def sources(prefix: str) -> list[str]:
    """What arrays were made from, of all whose sources begin so."""
    found = set()
    for about in (cache.folder() / "decoded").glob(f"*/*/{_ABOUT}"):
        try:
            source = files.read_json(about, _LARGEST_ABOUT)["source"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # arrays without metadata are never used
        if isinstance(source, str) and source.startswith(prefix):
            found.add(source)
    return sorted(found)


def verify(source: str) -> list[Checked]:
    """Every array that was made from a source, compared with its checksum."""
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
    """Remove what was made from a source, so that it is rebuilt."""
    with cache.exclusive(_home(source)):
        for left in _home(source).iterdir():
            if left.is_dir():
                shutil.rmtree(left)


def _sweep(home: Path) -> None:
    """Remove what killed processes left half made of other sources, which may never be asked for again."""
    for left in home.parent.glob(f"*/{_MAKING}*/"):
        lock = files.FileLock(left.parent / cache.LOCK)
        with suppress(OSError):
            if left.parent != home and lock.acquire():
                shutil.rmtree(left, ignore_errors=True)
        lock.release()


def _home(source: str) -> Path:
    name = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return cache.folder() / "decoded" / name


def _sum(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
