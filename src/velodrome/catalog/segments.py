"""The shared-memory segments of a job in /dev/shm: how they are named, and how none of them is left behind.

MPICH names its segment after a hash of the job's name and removes it only at an orderly end. The hash is copied here,
and nowhere else, so that the segment of a job whose processes were killed can be found by the job's name. Should MPICH
change it, `mapped` and `remove_orphans` find segments without it. Standard library only: the guardian of a run loads
this file by its path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")
#: What the names of MPICH's segments begin with, in all of its versions so far.
PREFIX = "mpich_"
#: Bytes of MPICH's segment on a host: for each of its ranks, and once. `tests/transport` fails when it takes more.
_BYTES_OF_A_RANK, _BYTES_OF_A_HOST = 1_057_344, 4_096


def job_name(token: str | None) -> str:
    """What MPICH knows a job by: made of its run's token, so that whoever knows that can remove what is left of it."""
    return f"velodrome_{token or os.urandom(8).hex()}"


def pattern(job: str) -> str:
    """The names of all segments of a job: MPICH's, which have a hash (FNV-1a) of the job's name in theirs, and ours."""
    value = 0x811C9DC5
    for byte in job.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{PREFIX}shm_{value:x}_*"


def pattern_of_run(token: str) -> str:
    """The names of all segments of the run with a token."""
    return pattern(job_name(token))


def path_of(job: str, number: int) -> Path:
    """Where a segment of our own lies: named so that one pattern finds all of a job."""
    return FOLDER / pattern(job).replace("*", f"shared{number}")


def needed(ranks: int) -> int:
    """Bytes that MPICH needs for so many ranks on one host. It does not look for them: without, SIGBUS ends it."""
    return ranks * _BYTES_OF_A_RANK + _BYTES_OF_A_HOST


def allocate(path: Path, size: int) -> None:
    """Make a segment with all of its memory; `OSError` where there is not as much, and nothing is left then."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def free() -> int:
    """Bytes that are free for segments; 0 where there is no place for them."""
    try:
        about = os.statvfs(FOLDER)
    except OSError:
        return 0
    return about.f_bavail * about.f_frsize


def mapped(process: int | str = "self") -> set[Path]:
    """The segments that a process has mapped and that still have a name."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    paths = [line[line.index("/") :] for line in lines if f" {FOLDER}/" in line]
    return {Path(path) for path in paths if not path.endswith(" (deleted)")}


def remove(paths: Iterable[Path]) -> None:
    """Drop the names of segments; who has mapped them keeps them."""
    for path in paths:
        path.unlink(missing_ok=True)


def remove_job(job: str) -> None:
    """Drop the names of all segments of a job."""
    remove(FOLDER.glob(pattern(job)))


def remove_orphans(since: float) -> list[Path]:
    """Remove MPICH's segments of this user, made after a moment (Unix seconds), that no process holds; their paths.

    For segments that `pattern` does not know; it looks at other processes only if there are any.
    """
    orphans = [path for path in FOLDER.glob(f"{PREFIX}*") if _is_ours(path, since)]
    if orphans:
        held = _held()
        orphans = [path for path in orphans if path not in held]
        remove(orphans)
    return orphans


def _is_ours(path: Path, since: float) -> bool:
    try:
        about = path.stat()
    except OSError:
        return False
    return about.st_uid == os.getuid() and about.st_ctime >= since


def _held() -> set[Path]:
    """The segments that any process has mapped or open."""
    held: set[Path] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        held |= mapped(process.name)
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                held.add(descriptor.readlink())
            except OSError:
                continue
    return held
