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

Shape = tuple[int, int]


def create(path: Path, shape: Shape, dtype: DTypeLike) -> bool:
    """Create the segment with all of its memory; False where there is not enough."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(descriptor, 0, _size(shape, dtype))
    except OSError:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
    return True


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
