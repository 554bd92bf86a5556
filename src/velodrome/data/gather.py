"""Picks examples out of images that may be larger than memory, without the process growing by what it has read."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes of a mapped file that may lie in the process before they are let go; the system's own cache keeps them.
WINDOW = 128 << 20
#: What the kernel maps around a place that is touched.
_AROUND = 64 << 10


class Gather:
    """Images by their places, as a copy. Memory stays within the window, whatever the size of the file."""

    def __init__(self, images: NDArray[np.uint8], window: int = WINDOW) -> None:
        self._images = images
        mapped: Any = getattr(images, "_mmap", None)
        self._mapped: mmap.mmap | None = mapped if isinstance(mapped, mmap.mmap) else None
        self._touched, self._window = 0, window
        self._each = int(np.prod(images.shape[1:])) + _AROUND
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_RANDOM)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        if self._mapped is None:
            return self._images.take(indices, axis=0)
        step = max(1, self._window // self._each)
        if len(indices) <= step:
            return self._some(indices)
        out = np.empty((len(indices), *self._images.shape[1:]), np.uint8)
        for first in range(0, len(indices), step):
            out[first : first + step] = self._some(indices[first : first + step])
        return out

    def _some(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        chosen = np.asarray(self._images).take(indices, axis=0)
        self._touched += len(indices) * self._each
        if self._touched >= self._window:
            self.release()
        return chosen

    def release(self) -> None:
        """Let go of everything that was read."""
        self._touched = 0
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)
