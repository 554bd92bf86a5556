"""Downloads the files of a set: each is complete and verified under its name, and resumed where it was interrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from velodrome.data.base import Checked, DataError, Progress
from velodrome.data.cache import files as cache
from velodrome.data.shards.index import ShardFile
from velodrome.data.storage.store import Store
from velodrome.files import sha256_of


def fetch(store: Store, files: Sequence[ShardFile], folder: Path, progress: Progress | None) -> list[Path]:
    """Paths of the files below a folder that belongs to this set only.

    A file is under its name only when its checksum was right. Processes that want different files do not wait for
    each other; those that want the same one do.
    """
    total, done = sum(file.bytes for file in files), 0
    try:
        for file in files:
            target = folder / file.name
            if not _is_there(target, file):
                # A process that waited here may find the work done.
                with cache.exclusive(folder / f".{file.name}.lock", also=_part_of(target)):
                    if not _is_there(target, file):
                        _download(store, file, target, progress, done, total)
            done += file.bytes
            if progress:
                progress(done, total, file.name)
    except OSError as error:
        raise DataError(
            f"the shards cannot be stored in {folder} ({error.strerror or error}): free some space, or set "
            "VELODROME_CACHE to a folder that can be written"
        ) from error
    return [folder / file.name for file in files]


def _is_there(target: Path, file: ShardFile) -> bool:
    return target.exists() and target.stat().st_size == file.bytes


def _part_of(target: Path) -> Path:
    """Where a file is until it is complete."""
    return target.with_name(f".{target.name}.part")


def _download(store: Store, file: ShardFile, target: Path, progress: Progress | None, base: int, total: int) -> None:
    part = _part_of(target)
    for attempt in ("resumed", "fresh"):
        have = part.stat().st_size if part.exists() else 0
        if attempt == "resumed" and have == 0:
            continue
        if attempt == "fresh" or have > file.bytes:
            part.unlink(missing_ok=True)
            have = 0
        digest = hashlib.sha256()
        if have:
            with part.open("rb") as stream:
                while data := stream.read(1 << 20):
                    digest.update(data)
        with part.open("ab") as out:
            if have < file.bytes:
                for data in store.chunks(file.name, have):
                    out.write(data)
                    digest.update(data)
                    have += len(data)
                    if progress:
                        progress(base + min(have, file.bytes), total, file.name)
                    if have > file.bytes:
                        break
        if have == file.bytes and digest.hexdigest() == file.sha256:
            part.replace(target)
            return
    part.unlink(missing_ok=True)
    what = "another checksum" if have == file.bytes else f"{have:,} bytes instead of {file.bytes:,}"
    raise DataError(f"{store.address(file.name)!r} is damaged: it has {what}; write the set again")


def check_fetched(files: Sequence[ShardFile], folder: Path) -> list[Checked]:
    """Those of the files that were fetched, compared with their checksums."""
    found = [(folder / file.name, file) for file in files if (folder / file.name).exists()]
    return [Checked(str(path), "ok" if _is_whole(path, file) else "damaged") for path, file in found]


def drop_damaged(files: Sequence[ShardFile], folder: Path) -> bool:
    """Remove fetched files that are no longer what was fetched, so that they are fetched again; True if any."""
    damaged = [Path(checked.file) for checked in check_fetched(files, folder) if checked.state == "damaged"]
    for path in damaged:
        path.unlink(missing_ok=True)
    return bool(damaged)


def _is_whole(path: Path, file: ShardFile) -> bool:
    try:
        return sha256_of(path) == file.sha256
    except OSError:
        return False
