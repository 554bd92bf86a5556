"""Picks examples out of arrays that may be larger than memory, without the process growing by what it has read.

A large file is read place by place rather than through its mapping: touching one page of a mapping may bring two
megabytes into the process, and letting go of them again costs ten times the reading.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import DataError

Number = TypeVar("Number", bound=np.generic)

#: Mapped files up to this size may come into the process whole.
WINDOW = 128 << 20


class Gather(Generic[Number]):
    """Rows by their places, as a copy: from memory, from a small mapped file, or from a large one by reading."""

    def __init__(self, rows: NDArray[Number], window: int = WINDOW) -> None:
        self._rows: NDArray[Number] = np.asarray(rows)
        self._stream: IO[bytes] | None = None
        if isinstance(rows, np.memmap) and rows.nbytes > window and rows.flags.c_contiguous:
            self._stream, self._start = _opened(rows)
        self._numbers = int(np.prod(rows.shape[1:]))
        self._each = self._numbers * rows.dtype.itemsize

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[Number]:
        if self._stream is None:
            return self._rows.take(indices, axis=0)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self._rows):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self._rows)} were asked for")
        out = np.empty((len(indices), *self._rows.shape[1:]), self._rows.dtype)
        file = self._stream.fileno()
        for row, place in zip(out.reshape(len(indices), self._numbers), indices.tolist(), strict=True):
            if os.preadv(file, [row.data], self._start + place * self._each) != self._each:
                raise DataError(f"{self._stream.name!r} was cut short while it was read: prepare the data set again")
        return out


def _opened(rows: np.memmap[Any, Any]) -> tuple[IO[bytes], int]:
    """The file behind a mapped array, and where in it the array begins; a slice begins later than its file's array."""
    whole = rows
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if rows.filename is None:
        raise DataError("rows are mapped from no file that has a name")
    return Path(rows.filename).open("rb"), rows.offset + rows.ctypes.data - whole.ctypes.data
