"""Images that come as arrays: every number is checked and converted to bytes.

Whole arrays that cannot be understood are refused; single examples that cannot be used are faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.bad_data import Faults
from velodrome.data.images.cached_set import TEST, TRAIN, VALIDATION
from velodrome.errors import BadRequest
from velodrome.printable import shown

PARTS = (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))
NAMES = tuple(f"{letter}_{part}" for part, _ in PARTS for letter in "xy")
_MOST_CLASSES = 65_536
_WINDOW = 4096


@dataclass(frozen=True)
class Examples:
    """Every example that can be used, as bytes."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    parts: NDArray[np.int8]
    class_names: list[str]
    notes: tuple[str, ...]


def check_arrays(name: str, arrays: Mapping[str, Any], faults: Faults) -> Examples:
    """`x_train`, `y_train` and, if there are any, `x_test`, `y_test`, `x_validation`, `y_validation`."""
    given = _given(name, arrays)
    shape = _shape(name, given)
    names = _class_names(name, given)
    images, labels, parts = [], [], []
    notes: dict[str, None] = {}
    pictures = [np.asarray(given[f"x_{part}"]) for part, _ in PARTS if f"x_{part}" in given]
    scales = {fractions: _scale(name, [a for a in pictures if (a.dtype.kind == "f") == fractions])
              for fractions in (False, True)}
    for part, which in PARTS:
        if f"x_{part}" not in given:
            continue
        array = np.asarray(given[f"x_{part}"])
        scale = scales[array.dtype.kind == "f"]
        pixels, usable = _bytes(f"x_{part}", array.reshape(-1, *shape), scale, faults)
        marks, sound = _labels(f"y_{part}", np.asarray(given[f"y_{part}"]), names, faults)
        kept = usable & sound
        images.append(pixels if kept.all() else pixels[kept])
        labels.append(marks[kept])
        parts.append(np.full(int(kept.sum()), which, np.int8))
        if array.dtype.kind == "f":
            notes["numbers with fractions were rounded to 256 shades, as images are stored"] = None
    whole = images[0] if len(images) == 1 else np.concatenate(images)
    return Examples(whole, np.concatenate(labels), np.concatenate(parts), names, tuple(notes))


def _given(name: str, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    given = {key: _array(name, key, arrays[key]) for key in NAMES if key in arrays}
    for part, which in PARTS:
        pair = [f"{letter}_{part}" for letter in "xy"]
        missing = [key for key in pair if key not in given]
        if len(missing) == 1 or (missing and which == TRAIN):
            raise BadRequest(
                f"data set {name!r} has no array {missing[0]!r} but {', '.join(map(shown, arrays)) or 'nothing'}: give "
                "x_train, y_train and, if there is a test set, x_test, y_test"
            )
        if not missing and len(given[pair[0]]) != len(given[pair[1]]):
            raise BadRequest(
                f"data set {name!r}: {pair[0]} holds {len(given[pair[0]]):,} examples and {pair[1]} "
                f"{len(given[pair[1]]):,} labels; both must be equally many"
            )
    return given


def as_array(value: Any) -> NDArray[Any]:
    """The value as an array; ValueError if its rows differ in length, where numpy before 1.24 only warns."""
    array: NDArray[Any] = np.asarray(value)
    if array.dtype.kind == "O" and any(isinstance(item, list | tuple | np.ndarray) for item in array.flat):
        raise ValueError("rows of different lengths")
    return array


def _array(name: str, key: str, value: Any) -> NDArray[Any]:
    try:
        array = as_array(value)
    except ValueError:
        raise BadRequest(f"data set {name!r}: the rows of {key} are not of one shape; make them alike") from None
    if array.ndim == 0:
        raise BadRequest(f"data set {name!r}: {key} is the single value {shown(value)!r}, and an array is needed")
    return array


def _shape(name: str, given: Mapping[str, Any]) -> tuple[int, int, int]:
    found: dict[str, tuple[int, ...]] = {}
    for key in given:
        if key.startswith("x"):
            array = np.asarray(given[key])
            if array.dtype.kind not in "buif":
                raise BadRequest(f"data set {name!r}: {key} holds {array.dtype}, and images are numbers")
            found[key] = array.shape[1:] if array.ndim != 3 else (*array.shape[1:], 1)
    key, shape = next(iter(found.items()))
    if len(shape) != 3 or not 1 <= shape[-1] <= 4 or 0 in shape:
        first = len(shape) == 3 and 1 <= shape[0] <= 4
        raise BadRequest(
            f"data set {name!r}: {key} has the shape {(len(given[key]), *shape)}, and images are count × height × width"
            " or count × height × width × channels"
            + ("; its channels seem to come before height and width: transpose them" if first else "")
        )
    for other, another in found.items():
        if another != shape:
            raise BadRequest(f"data set {name!r}: images of {key} are {shape}, of {other} {another}; make them alike")
    return shape[0], shape[1], shape[2]


def _scale(name: str, arrays: list[NDArray[Any]]) -> float:
    """What pixels are multiplied with to lie between 0 and 255; single ones far off are found later."""
    low, high = 0.0, 0.0
    for array in arrays:
        fractions = array.dtype.kind == "f"
        finite = array[np.isfinite(array)] if fractions else array
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        if fractions and (low < 0 or high > 255):
            raise BadRequest(
                f"data set {name!r}: pixels reach from {low:g} to {high:g}, and they must lie between 0 and 1 or "
                "between 0 and 255; rescale them"
            )
    return 255.0 if high <= 1 else 1.0


def _bytes(
    key: str, array: NDArray[Any], scale: float, faults: Faults
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    usable = np.ones(len(array), np.bool_)
    if array.dtype == np.uint8 and scale == 1:
        return array, usable
    pixels = np.empty(array.shape, np.uint8)
    for first in range(0, len(array), _WINDOW):  # a window at a time: floats would take eight times the memory
        window = array[first : first + _WINDOW].astype(np.float64).reshape(-1, array[0].size) * scale
        finite = np.asarray(np.isfinite(window).all(axis=1))
        window[~finite] = 0
        within = (window.min(axis=1) >= 0) & (window.max(axis=1) <= 255)
        window[~within] = 0
        for place in np.flatnonzero(~finite):
            faults.add("examples with NaN or infinity", f"{key}[{first + place}]")
        for place in np.flatnonzero(~within):
            faults.add("examples with pixels outside 0 to 255", f"{key}[{first + place}]")
        usable[first : first + _WINDOW] = finite & within
        pixels[first : first + _WINDOW] = np.rint(window).astype(np.uint8).reshape(-1, *array.shape[1:])
    return pixels, usable


def _class_names(name: str, given: Mapping[str, Any]) -> list[str]:
    kinds = {key: np.asarray(given[key]) for key in given if key.startswith("y")}
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


def _labels(
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
        faults.add("labels that are no whole numbers", f"{key}[{place}]", str(given[place]))
    for place in np.flatnonzero(whole & ~sound):
        faults.add("labels that are negative or that training does not have", f"{key}[{place}]", str(given[place]))
    return marks, sound
