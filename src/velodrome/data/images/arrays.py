"""Images that come as arrays: every number is checked and converted to bytes, a window of rows at a time.

Whole arrays that cannot be understood are refused; single examples that cannot be used are faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import Faults
from velodrome.data.split import TEST, TRAIN, VALIDATION
from velodrome.errors import BadRequest
from velodrome.machine import process_memory
from velodrome.printable import bytes_text, shown

#: Pixels that are converted at a time.
WINDOW_PIXELS = 2 << 20
#: Bytes of memory for a pixel that is converted, in addition to its own: as a double, rounded, compared, as a byte.
_EACH = 26


class RowArray(Protocol):
    """An array that is read from front to back."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def windows(self, rows: int) -> Iterator[NDArray[Any]]:
        """All rows, at most so many at a time."""

    def whole(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class HeldArray:
    """An array in memory."""

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def windows(self, rows: int) -> Iterator[NDArray[Any]]:
        for first in range(0, len(self.array), rows):
            yield self.array[first : first + rows]

    def whole(self) -> NDArray[Any]:
        return self.array


def has_fractions(array: RowArray) -> bool:
    return array.dtype.kind == "f"


def check_memory(name: str, arrays: Sequence[RowArray]) -> None:
    """Refuse images of which not even one could be converted."""
    for array in arrays:
        pixels = math.prod(array.shape[1:])
        needed, free = max(1, _rows_of_window(array)) * pixels * (array.dtype.itemsize + _EACH), process_memory()
        if needed > free:
            size = "×".join(map(str, array.shape[1:]))
            raise BadRequest(
                f"data set {name!r}: to convert images of {size} takes {bytes_text(needed)} of memory, and "
                f"{bytes_text(free)} are free: make them smaller"
            )


def _rows_of_window(array: RowArray) -> int:
    return max(1, WINDOW_PIXELS // max(1, math.prod(array.shape[1:])))


def scale_of(name: str, arrays: Sequence[RowArray]) -> float:
    """What pixels are multiplied with to lie between 0 and 255; single ones far off are found later.

    All arrays have fractions, or none has.
    """
    low, high = 0.0, 0.0
    for array in arrays:
        for window in array.windows(_rows_of_window(array)):
            if not has_fractions(array):
                high = max(high, float(window.max(initial=0)))
                if high > 1:
                    return 1.0
                continue
            finite = window[np.isfinite(window)]
            low, high = min(low, float(finite.min(initial=0))), max(high, float(finite.max(initial=0)))
        if low < 0 or high > 255:
            raise BadRequest(
                f"data set {name!r}: pixels reach from {low:g} to {high:g}, and they must lie between 0 and 1 or "
                "between 0 and 255; rescale them"
            )
    return 255.0 if high <= 1 else 1.0


def to_bytes(
    key: str, array: RowArray, scale: float, faults: Faults
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
    """Pixels (rows, …) as bytes, and which of the rows can be used; the others are faults."""
    first = 0
    for window in array.windows(_rows_of_window(array)):
        if array.dtype == np.uint8 and scale == 1:
            yield window, np.ones(len(window), np.bool_)
        else:
            yield _converted(key, window, first, scale, faults)
        first += len(window)


def _converted(
    key: str, window: NDArray[Any], first: int, scale: float, faults: Faults
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    numbers = window.reshape(len(window), -1).astype(np.float64)
    numbers *= scale
    finite = np.asarray(np.isfinite(numbers).all(axis=1))
    numbers[~finite] = 0
    within = (numbers.min(axis=1) >= 0) & (numbers.max(axis=1) <= 255)
    numbers[~within] = 0
    for place in np.flatnonzero(~finite):
        faults.add("examples with NaN or infinity", f"{key}[{first + place}]")
    for place in np.flatnonzero(~within):
        faults.add("examples with pixels outside 0 to 255", f"{key}[{first + place}]")
    pixels: NDArray[np.uint8] = np.rint(numbers, out=numbers).astype(np.uint8)
    return pixels.reshape(window.shape), finite & within


PARTS = (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))
NAMES = tuple(f"{letter}_{part}" for part, _ in PARTS for letter in "xy")
_MOST_CLASSES = 65_536


def as_array(value: Any) -> NDArray[Any]:
    """The value as an array; ValueError if its rows differ in length, where numpy before 1.24 only warns."""
    array: NDArray[Any] = np.asarray(value)
    if array.dtype.kind == "O" and any(isinstance(item, list | tuple | np.ndarray) for item in array.flat):
        raise ValueError("rows of different lengths")
    return array


def row_array(name: str, key: str, value: Any) -> RowArray:
    """An array that is read from front to back; a single value and rows of different shapes are refused."""
    if hasattr(value, "windows"):
        array: RowArray = value
    else:
        try:
            array = HeldArray(as_array(value))
        except ValueError:
            raise BadRequest(f"data set {name!r}: the rows of {key} are not of one shape; make them alike") from None
    if not array.shape:
        raise BadRequest(
            f"data set {name!r}: {key} is the single value {shown(array.whole())!r}, and an array is needed"
        )
    return array


def class_names(name: str, kinds: Mapping[str, NDArray[Any]]) -> list[str]:
    for key, array in kinds.items():
        if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
            raise BadRequest(
                f"data set {name!r}: {key} has the shape {array.shape}, and labels are one number or word an example; "
                "of one-hot rows take argmax(axis=1)"
            )
        if array.dtype.kind not in "buifU":
            raise BadRequest(f"data set {name!r}: {key} holds {array.dtype}, and labels are whole numbers or words")
    words = {key: array.dtype.kind == "U" for key, array in kinds.items()}
    if len(set(words.values())) > 1:
        kinds_found = ", ".join(f"{key} holds {'words' if are else 'numbers'}" for key, are in words.items())
        raise BadRequest(f"data set {name!r}: {kinds_found}; give the labels of all parts alike")
    trained = kinds["y_train"].ravel()
    if trained.dtype.kind == "U":
        return sorted({str(word) for word in trained if word})
    if trained.dtype.kind == "f":
        trained = trained[np.isfinite(trained) & (trained == np.floor(trained))]
    trained = trained[(trained >= 0) & (trained < _MOST_CLASSES)]
    highest = int(trained.max()) if trained.size else -1
    return [str(place) for place in range(highest + 1)]


def labels_of(
    key: str, array: NDArray[Any], names: list[str], faults: Faults
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    given = array.ravel()
    marks = np.zeros(len(given), np.int64)
    if given.dtype.kind == "U":
        places = {word: place for place, word in enumerate(names)}
        whole = np.ones(len(given), np.bool_)
        sound = np.array([str(word) in places for word in given], np.bool_)
        marks[sound] = [places[str(word)] for word in given[sound]]
    else:
        numbers = given.astype(np.float64)
        whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
        sound = whole & (numbers >= 0) & (numbers < len(names))
        marks[sound] = numbers[sound].astype(np.int64)
    for place in np.flatnonzero(~whole):
        faults.add("labels that are not whole numbers", f"{key}[{place}]", str(given[place]))
    for place in np.flatnonzero(whole & ~sound):
        faults.add("labels that are negative or that training does not have", f"{key}[{place}]", str(given[place]))
    return marks, sound
