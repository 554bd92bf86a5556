"""A buffer in memory that the ranks of one host share: each lays its numbers beside the others', and sums a slice.

Half the copying of a sum that is sent, and every rank reads the very same result. The segment loses its name as soon
as everybody has mapped it, so nothing is left behind however a rank ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from velodrome.transport.base import Flat


class SharedFlat(Flat):
    """`mine` is this rank's row of the segment, `total` the last row."""

    def __init__(self, rows: NDArray[Any], rank: int, barrier: Callable[[], None]) -> None:
        self._rows, self._barrier = rows[:-1], barrier
        self.mine, self.total = rows[rank], rows[-1]
        ranks, count = self._rows.shape
        self._slice = slice(count * rank // ranks, count * (rank + 1) // ranks)

    def reduce(self) -> None:
        self._barrier()  # all rows are written
        parts, total = self._rows[:, self._slice], self.total[self._slice]
        np.add(parts[0], parts[1], out=total)
        for part in parts[2:]:
            total += part
        self._barrier()  # all slices are summed


def create(path: Path, rows: int, count: int, dtype: DTypeLike) -> bool:
    """Make the segment, all of it backed by memory; False where there is not enough."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(descriptor, 0, rows * count * np.dtype(dtype).itemsize)
    except OSError:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
    return True


def attach(path: Path, rows: int, count: int, dtype: DTypeLike) -> NDArray[Any] | None:
    """The segment as rows of numbers; None where it cannot be reached."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, rows * count * np.dtype(dtype).itemsize)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, dtype).reshape(rows, count)
