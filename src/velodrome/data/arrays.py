"""Arrays: NumPy, imported when it is first used, and rows of arrays that may be mapped from files.

Describing data sets, as completion does at every key, must not wait for NumPy. Aliases of array types are strings,
because they would import it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Generic, TypeAlias, TypeGuard, TypeVar

from velodrome.data.base import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            module = import_module("numpy")
            self.__dict__.update(vars(module))  # from now on as fast as the module itself
            return getattr(module, name)

    np = _Lazy("numpy")
    DTypeLike = NDArray = Any  # in annotations alone, which are not evaluated

__all__ = [
    "ChosenRows", "DTypeLike", "Gather", "NDArray", "Pick", "is_mapped", "mapped", "np", "picked",
]

Number = TypeVar("Number", bound="np.generic")
#: Mapped files up to this size may come into the process whole.
WINDOW = 128 << 20


def is_mapped(array: object) -> TypeGuard[np.memmap[Any, Any]]:
    """Whether an array is mapped from a file, so that reading its rows makes the process grow."""
    return isinstance(array, np.memmap)


class Gather(Generic[Number]):
    """Rows by their places, as a copy: from memory, from a small mapped file, or from a large one by reading."""

    def __init__(self, rows: NDArray[Number], window: int = WINDOW) -> None:
        self._rows: NDArray[Number] = np.asarray(rows)
        self._stream: IO[bytes] | None = None
        if is_mapped(rows) and rows.nbytes > window and rows.flags.c_contiguous:
            self._stream, self._start = _open_file(rows)
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


def _open_file(rows: np.memmap[Any, Any]) -> tuple[IO[bytes], int]:
    """The file behind a mapped array, and where in it the array begins; a slice begins later than its file's array."""
    whole = rows
    while is_mapped(whole.base):
        whole = whole.base
    if rows.filename is None:
        raise DataError("rows are mapped from no file that has a name")
    return Path(rows.filename).open("rb"), rows.offset + rows.ctypes.data - whole.ctypes.data


#: Some rows of an array, by their numbers.
Pick: TypeAlias = "Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]"


def picked(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Some rows: neighbours stay mapped, shared by all processes of a host; a scattered choice is copied."""
    together = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
    taken: NDArray[Any] = array[int(rows[0]) : int(rows[-1]) + 1] if together else array[rows]
    return taken


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of memory-mapped images: only the slices that are read are copied."""

    images: NDArray[np.uint8]
    rows: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.images.shape[1:])

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return self.images.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, taken: slice) -> NDArray[np.uint8]:
        return self.images[self.rows[taken]]


#: For a single pass from front to back: nothing is copied until it is read.
mapped: Pick = ChosenRows  # type: ignore[assignment]
