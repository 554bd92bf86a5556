"""Arrays of any shape as examples: numbers stay as they are, rows with NaN are bad, words and integers are classes.

Inputs are converted a window of rows at a time and written where the caller wants them: into memory or into files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import Faults
from velodrome.data.examples import ExamplePart, ExampleSet
from velodrome.data.images.arrays import RowArray, class_names, labels_of
from velodrome.data.own.array_args import ArgumentPart
from velodrome.data.split import divide, large_enough
from velodrome.data.split_warnings import Fingerprints, row_fingerprints, with_row_warnings
from velodrome.errors import BadRequest

#: Numbers that are converted at a time.
_WINDOW = 2 << 20
#: Makes the array that an input is written to, from its name, shape and type.
Allocate = Callable[[str, tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]


@dataclass(frozen=True)
class ArrayExamples:
    """All examples of all parts, one after the other, and which of them can be used."""

    #: As `Allocate` made them; they have more rows than `rows` where examples are bad.
    inputs: Mapping[str, NDArray[Any]]
    targets: Mapping[str, NDArray[Any]]
    #: Of the usable examples.
    rows: NDArray[np.int64]
    parts: NDArray[np.int8]
    #: None where the targets are no classes; the columns of a matrix of 0 and 1 count as classes.
    classes: int | None
    class_names: tuple[str, ...]
    #: Inputs that are images, with their channels last.
    images: frozenset[str]
    #: Of the usable examples, to find the same one in two parts.
    prints: Fingerprints


def stored_dtype(array: RowArray) -> np.dtype[Any]:
    """The type that numbers are kept in: fractions as float32, yes and no and bytes as they are, other whole numbers
    as int64."""
    if array.dtype.kind in "fb":
        return np.dtype(np.float32 if array.dtype.kind == "f" else np.bool_)
    return np.dtype(np.uint8) if array.dtype == np.uint8 and len(array.shape) == 4 else np.dtype(np.int64)


def read(name: str, parts: Sequence[ArgumentPart], allocate: Allocate, faults: Faults) -> ArrayExamples:
    """Convert all arrays, and find the examples that can be used."""
    count = sum(map(len, parts))
    sound = np.ones(count, np.bool_)
    inputs = {}
    for one, array in parts[0].inputs.items():
        kinds = {stored_dtype(part.inputs[one]) for part in parts}
        dtype = kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)
        inputs[one] = out = allocate(one, (count, *array.shape[1:]), dtype)
        _convert(parts, one, out, sound, faults)
    targets, classes, names = _targets(name, parts, sound, faults)
    which = np.concatenate([np.full(len(part), part.which, np.int8) for part in parts])
    if classes is not None and len(targets) == 1 and next(iter(targets.values())).ndim == 1:
        targets, sound, names = _trained(name, targets, which, sound, names, faults)
        classes = len(names)
    rows = np.flatnonzero(sound)
    if not len(rows):
        raise BadRequest(f"data set {name!r} has no examples that can be used: {'; '.join(map(str, faults.found()))}")
    pictures = frozenset(one for one, array in inputs.items() if array.ndim == 4 and 1 <= array.shape[3] <= 4)
    prints = row_fingerprints(inputs, rows)
    return ArrayExamples(inputs, targets, rows, which[rows], classes, names, pictures, prints)


def _convert(
    parts: Sequence[ArgumentPart], one: str, out: NDArray[Any], sound: NDArray[np.bool_], faults: Faults
) -> None:
    first = 0
    for part in parts:
        begin = first
        for window in part.inputs[one].windows(max(1, _WINDOW // max(1, math.prod(out.shape[1:])))):
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinity
                out[first : first + len(window)] = window
            if out.dtype.kind == "f":
                finite = np.isfinite(out[first : first + len(window)]).reshape(len(window), -1).all(axis=1)
                for row in np.flatnonzero(~finite).tolist():
                    faults.add("examples with NaN or infinity", f"{part.key(one)}[{first - begin + row}]")
                sound[first : first + len(window)] &= finite
            first += len(window)


def _targets(
    name: str, parts: Sequence[ArgumentPart], sound: NDArray[np.bool_], faults: Faults
) -> tuple[dict[str, NDArray[Any]], int | None, tuple[str, ...]]:
    """The targets, how many classes the only one has, and their names."""
    found: dict[str, NDArray[Any]] = {}
    classes, names = None, tuple[str, ...]()
    for one in parts[0].targets:
        arrays = {part.key(one): part.targets[one].whole() for part in parts}
        kinds = {array.dtype.kind for array in arrays.values()}
        if "f" in kinds and "U" not in kinds:
            found[one] = values = np.concatenate([array.astype(np.float32) for array in arrays.values()])
            _drop_nan(arrays, sound, faults)
            if values.shape[1:] == (1,):
                found[one] = values[:, 0]
            continue
        single = all(array.ndim == 1 or array.shape[1:] == (1,) for array in arrays.values())
        if single and len(parts[0].targets) == 1:
            found[one], good, names = _labels(name, arrays, faults)
            sound &= good
            classes = len(names)
        elif "U" in kinds:
            raise BadRequest(f"data set {name!r}: {next(iter(arrays))} holds words, which only a single target may")
        else:
            found[one] = values = np.concatenate([array.astype(np.int64) for array in arrays.values()])
            if len(parts[0].targets) == 1 and values.ndim == 2 and set(np.unique(values).tolist()) <= {0, 1}:
                classes = values.shape[1]
    return found, classes, names


def _drop_nan(arrays: Mapping[str, NDArray[Any]], sound: NDArray[np.bool_], faults: Faults) -> None:
    first = 0
    for key, array in arrays.items():
        finite = np.isfinite(array.astype(np.float32)).reshape(len(array), -1).all(axis=1)
        for row in np.flatnonzero(~finite).tolist():
            faults.add("targets that are NaN or infinite", f"{key}[{row}]")
        sound[first : first + len(array)] &= finite
        first += len(array)


def _labels(
    name: str, arrays: Mapping[str, NDArray[Any]], faults: Faults
) -> tuple[NDArray[np.int64], NDArray[np.bool_], tuple[str, ...]]:
    """One class an example; words by their sorted places."""
    trained = {"y_train" if place == 0 else key: array for place, (key, array) in enumerate(arrays.items())}
    names = class_names(name, trained)
    pairs = [labels_of(key, array, names, faults) for key, array in arrays.items()]
    return np.concatenate([marks for marks, _ in pairs]), np.concatenate([good for _, good in pairs]), tuple(names)


def _trained(
    name: str, targets: Mapping[str, NDArray[Any]], parts: NDArray[np.int8], sound: NDArray[np.bool_],
    names: tuple[str, ...], faults: Faults,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_], tuple[str, ...]]:
    """Without the examples of classes that have too few to train on, which are faults."""
    (one, labels), = targets.items()
    trained = large_enough(labels[sound], parts[sound], names, faults, noun="examples")
    if trained.sum() < 2:
        raise BadRequest(f"data set {name!r} has {trained.sum()} classes, and training needs two")
    sound = sound & trained[labels]
    renumbered = np.where(sound, (np.cumsum(trained) - 1)[labels], 0)
    return {one: renumbered}, sound, tuple(word for word, any_ in zip(names, trained, strict=True) if any_)


def divided(
    name: str, examples: ArrayExamples, seed: int, validation: float, notes: tuple[str, ...] = ()
) -> ExampleSet:
    """The examples in parts: as given, and drawn from training where there is none, stratified by class."""
    only = next(iter(examples.targets.values()))
    by_class = examples.classes is not None and only.ndim == 1
    labels = only[examples.rows] if by_class else np.zeros(len(examples.rows), np.int64)
    division = divide(labels, examples.parts, seed, validation)
    train, validated, test = (_part(examples, examples.rows[chosen]) for chosen in division)
    arrays = ExampleSet(
        name, train, validated, test, classes=examples.classes, class_names=examples.class_names,
        images=examples.images, notes=notes,
    )
    targets = np.column_stack([array[examples.rows].reshape(len(examples.rows), -1)
                               for array in examples.targets.values()])
    return with_row_warnings(arrays, [examples.prints[chosen] for chosen in division], "examples",
                            [targets[chosen] for chosen in division])


def _part(examples: ArrayExamples, rows: NDArray[np.int64]) -> ExamplePart:
    # Neighbours stay mapped, shared by all processes of a host; a scattered choice is copied.
    together = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
    taken: Any = slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
    return ExamplePart(
        {one: array[taken] for one, array in examples.inputs.items()},
        {one: array[taken] for one, array in examples.targets.items()},
    )
