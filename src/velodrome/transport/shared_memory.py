"""Memory that the ranks of one host share: a segment whose name is removed as soon as all have mapped it, so that
nothing is left behind however a rank ends.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from velodrome.catalog import segments
from velodrome.printable import bytes_text

Shape = tuple[int, int]


def create(path: Path, shape: Shape, dtype: DTypeLike) -> str | None:
    """Create the segment with all of its memory; else why it cannot be, as part of a sentence."""
    size = _size(shape, dtype)
    try:
        segments.allocate(path, size)
    except OSError as error:
        free = bytes_text(segments.free())
        return f"{bytes_text(size)} of shared memory, and {path.parent} has {free} free ({error.strerror})"
    return None


def attach(path: Path, shape: Shape, dtype: DTypeLike) -> NDArray[Any] | None:
    """The segment as an array, of zeros at first; None where it cannot be mapped."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, _size(shape, dtype))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, dtype).reshape(shape)


def _size(shape: Shape, dtype: DTypeLike) -> int:
    return shape[0] * shape[1] * np.dtype(dtype).itemsize
