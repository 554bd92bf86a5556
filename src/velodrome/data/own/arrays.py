"""Arrays as a user gives them, sorted into parts, inputs and targets; their numbers are not read yet.

`x_train`, `y_train` and so on are arrays or dictionaries of arrays by name; in a file, `x_train.age` is one of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velodrome.data.base import NDArray, WrongData, np
from velodrome.data.examples import INPUT, TARGET
from velodrome.data.pixels import HeldArray, RowArray, has_fractions, scale_of
from velodrome.data.split import PARTS
from velodrome.errors import shown

NAMES = tuple(f"{letter}_{part}" for part in PARTS for letter in "xy")


def as_array(value: Any) -> NDArray[Any]:
    """The value as an array; ValueError if its rows differ in length, where numpy before 1.24 only warns."""
    array: NDArray[Any] = np.asarray(value)
    if array.dtype.kind == "O" and any(isinstance(item, list | tuple | np.ndarray) for item in array.flat):
        raise ValueError("rows of different lengths")
    return array


def row_array(key: str, value: Any) -> RowArray:
    """An array that is read from front to back; a single value and rows of different shapes are refused."""
    if hasattr(value, "windows"):
        array: RowArray = value
    else:
        try:
            array = HeldArray(as_array(value))
        except ValueError:
            raise WrongData(f"the rows of {key} are not of one shape; make them alike") from None
    if not array.shape:
        raise WrongData(f"{key} is the single value {shown(array.whole())!r}, but an array is needed")
    return array


@dataclass(frozen=True)
class ArgumentPart:
    """The arrays of one part, by name."""

    part: str
    which: int
    inputs: Mapping[str, RowArray]
    targets: Mapping[str, RowArray]

    def __len__(self) -> int:
        return next(iter(self.targets.values())).shape[0]

    def key(self, name: str) -> str:
        """What the user calls an array: `x_train`, or `x_train.age`."""
        letter = "x" if name in self.inputs else "y"
        return f"{letter}_{self.part}" + ("" if name in (INPUT, TARGET) else f".{name}")


def is_known(key: str) -> bool:
    """Whether an array of a file belongs to its examples."""
    return key in NAMES or key.partition(".")[0] in NAMES


def argument_parts(arrays: Mapping[str, Any]) -> list[ArgumentPart]:
    """The parts that are there, each with the same inputs and targets of the same shapes."""
    parts = []
    for which, part in enumerate(PARTS):
        sides = [_side(arrays, letter, part, only) for letter, only in (("x", INPUT), ("y", TARGET))]
        missing = [f"{letter}_{part}" for letter, side in zip("xy", sides, strict=True) if not side]
        if len(missing) == 1 or (missing and part == "train"):
            raise WrongData(
                f"it has no array {missing[0]!r} but {', '.join(map(shown, arrays)) or 'nothing'}: give "
                "x_train, y_train and, if there is a test set, x_test, y_test"
            )
        if not missing:
            parts.append(ArgumentPart(part, which, *sides))
    for each in parts:
        _refuse_one_hot(each)
        _check_alike(parts[0], each)
    return parts


def _side(arrays: Mapping[str, Any], letter: str, part: str, only: str) -> dict[str, RowArray]:
    key = f"{letter}_{part}"
    given = arrays.get(key)
    if isinstance(given, Mapping):
        named = {str(column): (f"{key}.{column}", array) for column, array in given.items()}
    elif given is not None:
        named = {only: (key, given)}
    else:
        named = {called.partition(".")[2]: (called, array) for called, array in arrays.items()
                 if called.startswith(f"{key}.")}
    return {column: row_array(called, array) for column, (called, array) in named.items()}


def _check_alike(first: ArgumentPart, part: ArgumentPart) -> None:
    every = {**part.inputs, **part.targets}
    if len(every) < len(part.inputs) + len(part.targets):
        twice = next(column for column in part.inputs if column in part.targets)
        raise WrongData(f"{twice!r} names both an input and a target; rename one")
    if [*every] != [*first.inputs, *first.targets] and {*every} != {*first.inputs, *first.targets}:
        raise WrongData(
            f"{first.part} has {_listed([*first.inputs, *first.targets])}, {part.part} has "
            f"{_listed([*every])}; give the same arrays in every part"
        )
    for column, array in every.items():
        if array.shape[0] != len(part):
            other = next(iter(part.targets))
            raise WrongData(
                f"{part.key(column)} holds {array.shape[0]:,} examples and {part.key(other)} "
                f"{len(part):,} labels; give one label per example"
            )
        shape = {**first.inputs, **first.targets}[column].shape[1:]
        if array.shape[1:] != shape:
            raise WrongData(
                f"examples of {first.key(column)} have the shape {shape}, of {part.key(column)} "
                f"{array.shape[1:]}; make them alike"
            )
        words = column in part.targets and array.dtype.kind == "U"
        if array.dtype.kind not in "buif" and not words:
            what = "targets are numbers or words" if column in part.targets else "inputs are numbers"
            raise WrongData(f"{part.key(column)} holds {array.dtype}, and {what}")
        if 0 in array.shape[1:]:
            raise WrongData(f"{part.key(column)} has the shape {array.shape}, which holds no numbers")


def _refuse_one_hot(part: ArgumentPart) -> None:
    for column, array in part.targets.items():
        if len(array.shape) != 2 or array.shape[1] < 2 or array.dtype.kind not in "buif" or not len(part):
            continue
        values = array.whole()
        if np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all():
            raise WrongData(
                f"every row of {part.key(column)} has a single 1, as one-hot labels do: give the "
                "classes as numbers, with argmax(axis=1)"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names)


# -- images that are stored as bytes

#: From this share of whole numbers on, labels in a float array are classes, and the others are mistakes.
_MOSTLY = 0.9


def byte_scales(parts: Sequence[ArgumentPart]) -> dict[bool, float] | None:
    """What turns pixels into bytes without loss, by whether they have fractions, if these are images with one label
    each: they train fastest. None for everything else."""
    first = parts[0]
    if [*first.inputs] != [INPUT] or [*first.targets] != [TARGET] or not _are_labels(first.targets[TARGET]):
        return None
    shape = first.inputs[INPUT].shape
    if len(shape) not in (3, 4) or (len(shape) == 4 and not 1 <= shape[3] <= 4):
        return None
    arrays = [part.inputs[INPUT] for part in parts]
    scales = {kind: scale_of([array for array in arrays if has_fractions(array) == kind]) for kind in (False, True)}
    return {kind: scale for kind, scale in scales.items() if scale is not None} if all(scales.values()) else None


def _are_labels(array: RowArray) -> bool:
    if len(array.shape) != 1 and array.shape[1:] != (1,):
        return False
    if array.dtype.kind != "f":
        return True
    values = array.whole().ravel()
    whole = np.isfinite(values) & (values == np.floor(values))
    return bool(whole.mean() >= _MOSTLY) if len(values) else True
