"""Arrays as examples: images of bytes where pixels are bytes without loss, other numbers as they are.

Rows with NaN are bad, words and integers are classes. Inputs are converted a window of rows at a time and written where
the caller wants them: into memory or into files, which every source of examples keeps in the cache in the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from velodrome.data.base import Faults, Gather, NDArray, Pick, WrongData, mapped, np, picked
from velodrome.data.examples import ArrayField, ExamplePart, ExampleSet, fields_of
from velodrome.data.own.arrays import ArgumentPart
from velodrome.data.pixels import RowArray, check_memory, has_fractions, to_bytes
from velodrome.data.source import CachedSource, notes_of
from velodrome.data.split import (
    Division,
    Fingerprints,
    count_parts,
    divide,
    fingerprints_of,
    trainable_classes,
    unused_validation,
    with_split_warnings,
)

#: Numbers that are converted at a time.
_WINDOW = 2 << 20
_AS_BYTES = "pixels with fractions are whole numbers over 255, or whole: they are stored as bytes, without loss"
#: How arrays are read: as labelled images whose pixels are bytes, or as the numbers that they hold.
Kind = Literal["images", "arrays"]
#: Stores rows of an input, from front to back: its name, the place of the first of them, and the rows.
Write: TypeAlias = "Callable[[str, int, NDArray[Any]], object]"
#: Divides examples by their labels and parts: see `divide`.
Divide: TypeAlias = "Callable[[NDArray[np.int64], NDArray[np.int8], int, float], Division]"


@dataclass(frozen=True)
class ArrayExamples:
    """All examples of all parts, one after the other, and which of them can be used."""

    targets: Mapping[str, NDArray[Any]]
    #: Of the usable examples.
    rows: NDArray[np.int64]
    parts: NDArray[np.int8]
    #: None where the targets are not classes; the columns of a matrix of 0 and 1 count as classes.
    classes: int | None
    class_names: tuple[str, ...]
    #: Inputs that are images, with their channels last.
    images: frozenset[str]
    notes: tuple[str, ...] = ()
    #: Where the caller put them; they have more rows than `rows` where examples are bad.
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    #: Of the usable examples, to find the same one in two parts.
    prints: Fingerprints = field(default_factory=lambda: np.zeros(0, np.uint64))


def form_of(kind: Kind, parts: Sequence[ArgumentPart], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape of one example of an input, and the type that its numbers are kept in."""
    shape = parts[0].inputs[name].shape[1:]
    if kind == "images":
        return shape if len(shape) == 3 else (*shape, 1), np.dtype(np.uint8)
    types = {_stored_dtype(part.inputs[name]) for part in parts}
    return shape, types.pop() if len(types) == 1 else np.dtype(np.float32)


def _stored_dtype(array: RowArray) -> np.dtype[Any]:
    """The type that numbers are kept in: fractions as float32, yes and no and bytes as they are, other whole numbers
    as int64."""
    if array.dtype.kind in "fb":
        return np.dtype(np.float32 if array.dtype.kind == "f" else np.bool_)
    return np.dtype(np.uint8) if array.dtype == np.uint8 and len(array.shape) == 4 else np.dtype(np.int64)


def read(
    scales: Mapping[bool, float] | None, parts: Sequence[ArgumentPart], write: Write, faults: Faults
) -> ArrayExamples:
    """Convert all arrays, and find the examples that can be used. Images are those that have `byte_scales`."""
    kind: Kind = "images" if scales else "arrays"
    count = sum(map(len, parts))
    sound = np.ones(count, np.bool_)
    images = set()
    for column in parts[0].inputs:
        shape, dtype = form_of(kind, parts, column)
        windows = _pixels(parts, column, scales, faults) if scales else _numbers(parts, column, dtype, faults)
        first = 0
        for window, good in windows:
            write(column, first, np.ascontiguousarray(window).reshape(-1, *shape))
            sound[first : first + len(good)] &= good
            first += len(good)
        if len(shape) == 3 and 1 <= shape[2] <= 4:
            images.add(column)
    targets, classes, names = _targets(kind, parts, sound, faults)
    which = np.concatenate([np.full(len(part), part.which, np.int8) for part in parts])
    if classes is not None and len(targets) == 1 and next(iter(targets.values())).ndim == 1:
        targets, sound, names = _drop_small_classes(kind, targets, which, sound, names, faults)
        classes = len(names)
    rows = np.flatnonzero(sound)
    if not len(rows):
        raise WrongData(f"it has no examples that can be used{faults.because}")
    fractions = scales is not None and any(has_fractions(array) for part in parts for array in part.inputs.values())
    return ArrayExamples(
        targets, rows, which[rows], classes, names, frozenset(images), (_AS_BYTES,) if fractions else ()
    )


def _numbers(
    parts: Sequence[ArgumentPart], column: str, dtype: np.dtype[Any], faults: Faults
) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """The rows of an input, a window at a time, and which of them are finite."""
    for part in parts:
        first = 0
        array = part.inputs[column]
        for window in array.windows(max(1, _WINDOW // max(1, math.prod(array.shape[1:])))):
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinity
                numbers = window.astype(dtype, copy=False)
            finite = np.ones(len(window), np.bool_)
            if dtype.kind == "f":
                finite = np.isfinite(numbers).reshape(len(window), -1).all(axis=1)
                for row in np.flatnonzero(~finite).tolist():
                    faults.add("examples with NaN or infinity", f"{part.key(column)}[{first + row}]")
            yield numbers, finite
            first += len(window)


def _pixels(
    parts: Sequence[ArgumentPart], column: str, scales: Mapping[bool, float], faults: Faults
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
    """The same for images whose pixels are bytes; arrays with fractions have a scale of their own."""
    arrays = {part.key(column): part.inputs[column] for part in parts}
    check_memory(list(arrays.values()))
    for key, array in arrays.items():
        yield from to_bytes(key, array, scales[has_fractions(array)], faults)


def _targets(
    kind: Kind, parts: Sequence[ArgumentPart], sound: NDArray[np.bool_], faults: Faults
) -> tuple[dict[str, NDArray[Any]], int | None, tuple[str, ...]]:
    """The targets, how many classes the only one has, and their names."""
    targets: dict[str, NDArray[Any]] = {}
    classes, names = None, tuple[str, ...]()
    for column in parts[0].targets:
        arrays = {part.key(column): part.targets[column].whole() for part in parts}
        kinds = {array.dtype.kind for array in arrays.values()}
        if "f" in kinds and "U" not in kinds and kind == "arrays":
            targets[column] = values = np.concatenate([array.astype(np.float32) for array in arrays.values()])
            _drop_nan(arrays, sound, faults)
            if values.shape[1:] == (1,):
                targets[column] = values[:, 0]
            continue
        single = all(array.ndim == 1 or array.shape[1:] == (1,) for array in arrays.values())
        if single and len(parts[0].targets) == 1:
            targets[column], good, names = _labels(arrays, faults)
            sound &= good
            classes = len(names)
        elif "U" in kinds:
            raise WrongData(f"{next(iter(arrays))} holds words, which are allowed in a single target only")
        else:
            targets[column] = values = np.concatenate([array.astype(np.int64) for array in arrays.values()])
            if len(parts[0].targets) == 1 and values.ndim == 2 and set(np.unique(values).tolist()) <= {0, 1}:
                classes = values.shape[1]
    return targets, classes, names


def _drop_nan(arrays: Mapping[str, NDArray[Any]], sound: NDArray[np.bool_], faults: Faults) -> None:
    first = 0
    for key, array in arrays.items():
        finite = np.isfinite(array.astype(np.float32)).reshape(len(array), -1).all(axis=1)
        for row in np.flatnonzero(~finite).tolist():
            faults.add("targets that are NaN or infinite", f"{key}[{row}]")
        sound[first : first + len(array)] &= finite
        first += len(array)


def _labels(
    arrays: Mapping[str, NDArray[Any]], faults: Faults
) -> tuple[NDArray[np.int64], NDArray[np.bool_], tuple[str, ...]]:
    """One class an example; words by their sorted places."""
    trained = {"y_train" if place == 0 else key: array for place, (key, array) in enumerate(arrays.items())}
    names = class_names(trained)
    pairs = [labels_of(key, array, names, faults) for key, array in arrays.items()]
    return np.concatenate([marks for marks, _ in pairs]), np.concatenate([good for _, good in pairs]), tuple(names)


def _drop_small_classes(
    kind: Kind, targets: Mapping[str, NDArray[Any]], parts: NDArray[np.int8], sound: NDArray[np.bool_],
    names: tuple[str, ...], faults: Faults,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_], tuple[str, ...]]:
    """Without the examples of classes that have too few to train on, which are faults."""
    (column, labels), = targets.items()
    trained, numbers, names = trainable_classes(labels[sound], parts[sound], names, faults, noun=noun_of(kind))
    sound = sound & trained[labels]
    return {column: np.where(sound, numbers[labels], 0)}, sound, names


def noun_of(kind: Kind) -> str:
    """What examples are called in sentences."""
    return "images" if kind == "images" else "examples"


def divide_examples(
    name: str, examples: ArrayExamples, seed: int, validation: float, notes: tuple[str, ...] = (), pick: Pick = picked,
    divide: Divide = divide,
) -> ExampleSet:
    """The examples in parts: as given, and drawn from training where there is none, stratified by class."""
    only = next(iter(examples.targets.values()))
    by_class = examples.classes is not None and only.ndim == 1
    labels = only[examples.rows] if by_class else np.zeros(len(examples.rows), np.int64)
    division = divide(labels, examples.parts, seed, validation)

    def part(rows: NDArray[np.int64]) -> ExamplePart:
        return ExamplePart({column: pick(array, rows) for column, array in examples.inputs.items()},
                           {column: picked(array, rows) for column, array in examples.targets.items()})

    train, validated, test = (part(examples.rows[chosen]) for chosen in division)
    data = ExampleSet(
        name, train, validated, test, classes=examples.classes, class_names=examples.class_names,
        images=examples.images, notes=notes,
    )
    targets = np.column_stack([array[examples.rows].reshape(len(examples.rows), -1)
                               for array in examples.targets.values()])
    return with_split_warnings(data, [examples.prints[chosen] for chosen in division], noun_of(data.kind),
                               [targets[chosen] for chosen in division])


@dataclass(frozen=True)
class StoredExamples(CachedSource):
    """Examples that are kept in the cache as `store` writes them, and divided whenever they are loaded."""

    def load(self, seed: int, validation: float, pick: Pick = picked) -> ExampleSet:
        kept = self.decoded()
        about = kept.about
        examples = ArrayExamples(
            {column.name: kept.array(f"target{place}") for place, column in enumerate(fields(about, "targets"))},
            kept.array("rows"), kept.array("parts"), about["classes"], tuple(about["class_names"]),
            frozenset(about["images"]), (),
            {column.name: kept.array(f"input{place}") for place, column in enumerate(fields(about, "inputs"))},
            kept.array("prints"),
        )
        notes = (*notes_of(about), *self.division_notes(about["parts"], validation))
        return divide_examples(self.name, examples, seed, validation, notes, pick, self.divide)

    def load_mapped(self, seed: int, validation: float) -> ExampleSet:
        return self.load(seed, validation, mapped)

    def divide(self, labels: NDArray[np.int64], parts: NDArray[np.int8], seed: int, validation: float) -> Division:
        """Places of the training, validation and test examples."""
        return divide(labels, parts, seed, validation)

    def division_notes(self, parts: Sequence[int], validation: float) -> tuple[str, ...]:
        """What a reader of a run should know of the division."""
        return unused_validation(self.name, parts, validation)


def store(folder: Path, names: Sequence[str], examples: ArrayExamples) -> dict[str, Any]:
    """Write the arrays of examples whose inputs of these names lie in the folder already, as `input0.npy` and so on;
    their metadata."""
    inputs = {name: Gather.of_file(folder / f"input{place}.npy") for place, name in enumerate(names)}
    for place, array in enumerate(examples.targets.values()):
        np.save(folder / f"target{place}.npy", array)
    prints = fingerprints_of([*inputs.values()], examples.rows)
    for name, array in (("rows", examples.rows), ("parts", examples.parts), ("prints", prints)):
        np.save(folder / f"{name}.npy", array)
    return {
        "classes": examples.classes, "class_names": list(examples.class_names),
        "inputs": [asdict(column) for column in fields_of({name: reader.rows for name, reader in inputs.items()})],
        "targets": [asdict(column) for column in fields_of(examples.targets)],
        "images": sorted(examples.images), "notes": list(examples.notes), "parts": count_parts(examples.parts),
    }


def fields(about: Mapping[str, Any], side: str) -> tuple[ArrayField, ...]:
    """The inputs or targets in what `store` returned."""
    return tuple(ArrayField(column["name"], tuple(column["shape"]), column["dtype"]) for column in about[side])


_MOST_CLASSES = 65_536


def class_names(kinds: Mapping[str, NDArray[Any]]) -> list[str]:
    for key, array in kinds.items():
        if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
            raise WrongData(
                f"{key} has the shape {array.shape}, but labels are one number or word per example; convert one-hot "
                "rows with argmax(axis=1)"
            )
        if array.dtype.kind not in "buifU":
            raise WrongData(f"{key} holds {array.dtype}, but labels are whole numbers or words")
    words = {key: array.dtype.kind == "U" for key, array in kinds.items()}
    if len(set(words.values())) > 1:
        kinds_found = ", ".join(f"{key} holds {'words' if are else 'numbers'}" for key, are in words.items())
        raise WrongData(f"{kinds_found}; give the labels of all parts alike")
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
