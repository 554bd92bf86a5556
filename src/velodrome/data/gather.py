"""Picks examples out of images that may be larger than memory, without the process growing by what it has read.

A large file is read place by place rather than through its mapping: touching one page of a mapping may bring two
megabytes into the process, and letting go of them again costs ten times the reading.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import DataError

#: Mapped files up to this size may come into the process whole.
WINDOW = 128 << 20


class Gather:
    """Images by their places, as a copy: from memory, from a small mapped file, or from a large one by reading."""

    def __init__(self, images: NDArray[np.uint8], window: int = WINDOW) -> None:
        self._images: NDArray[np.uint8] = np.asarray(images)
        self._stream: IO[bytes] | None = None
        if isinstance(images, np.memmap) and images.nbytes > window and images.flags.c_contiguous:
            self._stream, self._start = _opened(images)
        self._each = int(np.prod(images.shape[1:]))

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        if self._stream is None:
            return self._images.take(indices, axis=0)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self._images):
            raise IndexError(f"images {indices.min()} to {indices.max()} of {len(self._images)} were asked for")
        out = np.empty((len(indices), *self._images.shape[1:]), np.uint8)
        rows, file = out.reshape(len(indices), self._each), self._stream.fileno()
        for row, place in zip(rows, indices.tolist(), strict=True):
            if os.preadv(file, [row.data], self._start + place * self._each) != self._each:
                raise DataError(f"{self._stream.name!r} was cut short while it was read: prepare the data set again")
        return out


def _opened(images: np.memmap[tuple[int, ...], np.dtype[np.uint8]]) -> tuple[IO[bytes], int]:
    """The file behind a mapped array, and where in it the array begins; a slice begins later than its file's array."""
    whole = images
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if images.filename is None:
        raise DataError("images are mapped from no file that has a name")
    return Path(images.filename).open("rb"), images.offset + images.ctypes.data - whole.ctypes.data
