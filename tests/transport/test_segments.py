"""Segments in shared memory are found by their job's name, and without it by who holds them."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from velodrome.catalog import segments

pytestmark = pytest.mark.unit


@pytest.fixture
def segment() -> Iterator[Path]:
    path = segments.FOLDER / f"{segments.PREFIX}test_{os.getpid()}_{time.monotonic_ns()}"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


def test_a_job_is_named_after_its_run_and_so_are_its_segments() -> None:
    assert segments.job_name("abc") == "velodrome_abc"
    assert segments.job_name(None) != segments.job_name(None)
    assert segments.pattern("velodrome_7f9876de6fa5eb3f") == "mpich_shm_43724071_*"  # seen in MPICH 5.0
    assert segments.pattern_of_run("7f9876de6fa5eb3f") == "mpich_shm_43724071_*"
    assert segments.path_of("velodrome_7f9876de6fa5eb3f", 2).match("/dev/shm/mpich_shm_43724071_*")


def test_a_segment_that_nobody_holds_is_removed(segment: Path) -> None:
    assert segment in segments.remove_orphans(time.time() - 60)
    assert not segment.exists()


def test_a_segment_of_an_earlier_moment_stays(segment: Path) -> None:
    assert segments.remove_orphans(time.time() + 60) == []
    assert segment.exists()


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_a_segment_that_a_process_holds_stays(segment: Path, how: str) -> None:
    stream = segment.open("r+b")
    memory = mmap.mmap(stream.fileno(), 4096)
    if how == "mapped":
        stream.close()
        assert segment in segments.mapped()
    else:
        memory.close()
        assert segment not in segments.mapped()
    assert segment not in segments.remove_orphans(time.time() - 60)
    assert segment.exists()
    memory.close()
    stream.close()


def test_a_segment_that_does_not_fit_is_not_left_behind() -> None:
    path = segments.FOLDER / f"{segments.PREFIX}test_{os.getpid()}"
    with pytest.raises(OSError, match="No space left"):
        segments.allocate(path, 2**50)
    assert not path.exists()
    segments.allocate(path, 5000)
    assert path.stat().st_blocks * 512 >= 5000
    path.unlink()
