"""Divides examples into training, validation and test, and looks for what a division gets wrong.

The division is seeded, stratified, and the same on every machine and with every release of numpy. A column of a table,
or folders, may say which part an example belongs to; what is missing is drawn from training. Warnings are about
examples that are in two parts, the same example with different labels, and classes that a part lacks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from velodrome.data.base import Faults, Gather, NDArray, WrongData, np
from velodrome.data.examples import ExampleSet
from velodrome.errors import BadRequest, shown

TRAIN, VALIDATION, TEST = 0, 1, 2
#: The names of these.
PARTS = ("train", "validation", "test")
#: What a part of the user's own data may be called, in small letters.
PART_NAMES: Mapping[str, int] = {
    "train": TRAIN, "training": TRAIN,
    "validation": VALIDATION, "valid": VALIDATION, "val": VALIDATION, "dev": VALIDATION,
    "test": TEST, "testing": TEST,
}
#: A column of this name, in any case, says which part a row belongs to, if no other is named.
PART_COLUMNS = ("part", "split")
#: The job's default; another share that cannot be used is mentioned in the notes.
DEFAULT_VALIDATION = 0.1
#: The share that is drawn for a test set where the data has none.
TEST_SHARE = 0.2
#: Draws that share a seed are kept apart by a number each.
TEST_DRAW, VALIDATION_DRAW = 1, 2


def held_out(total: int, share: float) -> int:
    """How many of `total` examples a share is: at least one if any is asked for, and never all."""
    if not 0 <= share < 1:
        raise BadRequest(f"--validation {share}: give a share of the training set from 0 up to, not including, 1")
    count = max(1, round(total * share)) if share else 0
    if count >= total:
        raise BadRequest(f"--validation {share}: leaves none of {total:,} examples to train on; choose a smaller one")
    return count


def stratified(labels: NDArray[np.int64], count: int, seed: int, purpose: int) -> NDArray[np.bool_]:
    """Mark exactly `count` examples, drawn at random but with every class in proportion.

    `purpose` keeps draws apart that share a seed. Only raw bits are drawn, because numpy promises that those stay
    the same from release to release, and promises no such thing for its permutations.
    """
    sizes = np.bincount(labels)
    take, remainders = np.divmod(count * sizes, max(1, len(labels)))
    largest_remainders = np.argsort(-remainders, kind="stable")
    take[largest_remainders[: count - int(take.sum())]] += 1

    keys = np.random.PCG64(np.random.SeedSequence([seed, purpose])).random_raw(len(labels))
    order = np.lexsort((keys, labels))
    first_of_class = np.cumsum(sizes) - sizes
    place_in_class = np.arange(len(labels)) - np.repeat(first_of_class, sizes)
    marked = np.zeros(len(labels), dtype=np.bool_)
    marked[order[place_in_class < np.repeat(take, sizes)]] = True
    return marked


def sizes_of(parts: tuple[int, int, int], validation: float) -> tuple[int, int, int]:
    """How many examples training, validation and test have after `divide`, given those of each part."""
    train, validated, test = parts
    if not test:
        test = _drawn_for_test(train)
        train -= test
    if not validated:
        validated = held_out(train, validation)
        train -= validated
    return train, validated, test


#: Places of the training, validation and test examples.
Division: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]"


def divide(labels: NDArray[np.int64], parts: NDArray[np.int8], seed: int, validation: float) -> Division:
    """Places of the examples of each part as they were given; missing test and validation sets are drawn from training,
    stratified and seeded."""
    def draw(places: NDArray[np.int64], count: int, purpose: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        marked = stratified(labels[places], count, seed, purpose)
        return places[~marked], places[marked]

    train, validated, test = (np.flatnonzero(parts == part) for part in (TRAIN, VALIDATION, TEST))
    if not len(test):
        train, test = draw(train, _drawn_for_test(len(train)), TEST_DRAW)
    if not len(validated):
        train, validated = draw(train, held_out(len(train), validation), VALIDATION_DRAW)
    return train, validated, test


def unused_validation(name: str, parts: Sequence[int], validation: float) -> tuple[str, ...]:
    """A note if `--validation` has no effect, because the data has a validation set of its own."""
    if not parts[VALIDATION] or validation == DEFAULT_VALIDATION:
        return ()
    return (f"--validation {validation:g} is not used: {name!r} has a validation set of its own",)


def _drawn_for_test(train: int) -> int:
    if train < 2:
        raise BadRequest(
            f"there are {train} examples to train on and no test set: a fifth of them, at least one, is drawn for it, "
            "which leaves none; add examples, or give a test set of your own"
        )
    return held_out(train, TEST_SHARE)


def trainable_classes(
    labels: NDArray[np.int64], parts: NDArray[np.int8], class_names: Sequence[str], faults: Faults,
    *, noun: str = "images", of: str = "it",
) -> tuple[NDArray[np.bool_], NDArray[np.int64], tuple[str, ...]]:
    """Which classes have an example to train on, and one more for each part that is drawn from training, the number of
    each when the others are left out, and their names. The others are faults; fewer than two are refused."""
    sizes = np.bincount(labels[parts == TRAIN], minlength=len(class_names))
    fewest = 1 + sum(not (parts == part).any() for part in (VALIDATION, TEST))
    for place in np.flatnonzero(sizes < fewest).tolist():
        if sizes[place]:
            faults.add(f"classes with fewer than {fewest} training {noun}", class_names[place], f"{sizes[place]}")
        else:
            faults.add(f"classes without training {noun}", class_names[place])
    trained = np.asarray(sizes >= fewest)
    if trained.sum() < 2:
        raise WrongData(f"{of} has {trained.sum()} classes that can be used, but training needs two{faults.because}")
    names = tuple(name for name, usable in zip(class_names, trained, strict=True) if usable)
    return trained, np.cumsum(trained) - 1, names


def count_parts(parts: NDArray[np.int8]) -> list[int]:
    """How many examples training, validation and test have as they were given."""
    return [int((parts == which).sum()) for which in (TRAIN, VALIDATION, TEST)]


def part_column(heads: Sequence[str], taken: Collection[str]) -> str | None:
    """The column of a table that divides the rows by its name."""
    free = {head.strip().lower(): head for head in reversed(heads) if head not in taken}
    return next((free[name] for name in PART_COLUMNS if name in free), None)


def looks_like_parts(words: Collection[str]) -> bool:
    """Whether these words, all that a column has, name the training part and another one, and nothing else."""
    parts = {PART_NAMES.get(word.strip().lower()) for word in words}
    return None not in parts and len(parts) > 1


def overlooked_note(column: str, used_as: str, option: str) -> str:
    """The sentence about a column that seems to divide the rows, although its name does not say so."""
    return f"column {shown(column)!r} seems to divide the rows, and is {used_as}: {option} divides them by it"


Fingerprints: TypeAlias = "NDArray[np.uint64]"
#: How many classes are named.
_NAMED = 10
#: Rows are compared only where most of those to train on differ: a table of a few categories repeats itself by nature.
_MOSTLY_DIFFERENT = 0.5
_ODD = 0x9E3779B97F4A7C15
#: Bytes that are read at a time.
_WINDOW = 1 << 20


def fingerprints(*inputs: NDArray[Any], rows: NDArray[np.int64] | None = None) -> Fingerprints:
    """A number for each of these rows, by default all, of one or several arrays: equal where all of them are equal, and
    otherwise different."""
    rows = np.arange(inputs[0].shape[0]) if rows is None else rows
    return fingerprints_of([Gather(array, window=0) for array in inputs], rows)


def fingerprints_of(readers: Sequence[Gather[Any]], rows: NDArray[np.int64]) -> Fingerprints:
    """The same of arrays that may lie in files larger than memory."""
    count = max(1, _WINDOW // max(1, sum(reader.each for reader in readers)))

    def sums() -> Iterator[bytes]:
        for first in range(0, len(rows), count):
            columns = [read(rows[first : first + count]) for read in readers]
            for row in zip(*columns, strict=True):
                yield hashlib.blake2b(b"".join(row), digest_size=8).digest()

    return np.frombuffer(b"".join(sums()), np.uint64)


def with_split_warnings(
    data: ExampleSet, prints: Sequence[Fingerprints] | None, noun: str = "images",
    targets: Sequence[NDArray[Any]] | None = None,
) -> ExampleSet:
    """The data with notes about its division.

    `prints` are those of training, validation and test; without them, what is known of overlaps is kept. `targets` are
    those of the parts as they were given, where they are not the labels. `noun` says what examples are called.
    """
    labels = None
    if data.classes is not None and all(part.targets and values.ndim == 1 for part in data.parts
                                        for values in part.targets.values()):
        labels = [next(iter(part.targets.values())) for part in data.parts]
    overlaps, content = data.overlaps, data.content
    if prints is not None:
        overlaps = tuple(_overlaps(prints, labels, noun)) if _mostly_differ(prints[0], noun) else ()
        content = content_of(prints, targets or labels or ())
    untested = [] if labels is None else _untested(
        labels, data.class_names or range(data.class_count), all_files=not data.own_files
    )
    return replace(
        data, notes=(*data.notes, *overlaps, *untested), content=content,
        overlaps=overlaps if data.kind == "images" else (),
    )


def _mostly_differ(prints: Fingerprints, noun: str) -> bool:
    """Whether duplicates are worth a note: those of images always are, those of rows only if most rows differ."""
    return noun == "images" or len(np.unique(prints)) > _MOSTLY_DIFFERENT * len(prints)


def content_of(prints: Sequence[Fingerprints], targets: Sequence[NDArray[Any]]) -> str:
    """A fingerprint of all examples and targets that does not depend on their order or division."""
    every = np.concatenate(prints) ^ np.concatenate([_numbers_of(some) for some in targets])
    mixed = (every ^ (every >> np.uint64(31))) * np.uint64(_ODD)
    mixed ^= mixed >> np.uint64(29)
    total = f"{len(every)} {int(np.add.reduce(mixed, dtype=np.uint64))}"
    return hashlib.blake2b(total.encode(), digest_size=8).hexdigest()


def _numbers_of(targets: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for each row of targets, which depends on all of its numbers."""
    rows = targets.reshape(len(targets), math.prod(targets.shape[1:]))
    bits = np.ascontiguousarray(rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)).view(np.uint64)
    numbers = np.zeros(len(rows), np.uint64)
    for column in bits.T:
        numbers = numbers * np.uint64(_ODD) + column + np.uint64(1)
    return numbers * np.uint64(_ODD)


def _overlaps(
    prints: Sequence[Fingerprints], labels: Sequence[NDArray[Any]] | None, noun: str
) -> list[str]:
    """Examples that are in two parts, and examples with several labels."""
    every = np.concatenate(prints)
    if len(np.unique(every)) == len(every):
        return []
    train, validation, test = prints
    how = "pixel by pixel" if noun == "images" else "number by number"
    notes = []
    for name, part, other, where in (
        ("test", test, train, "training"), ("validation", validation, train, "training"),
        ("test", test, validation, "validation"),
    ):
        if twice := int(np.isin(part, other).sum()):
            notes.append(
                f"{twice:,} of {len(part):,} {name} {noun} {'is' if twice == 1 else 'are'} also in the {where} set, "
                f"{how}: remove duplicates from one of the two, or {name} results look better than they are"
            )
    if labels is None:
        return notes
    marks = np.concatenate(list(labels))
    order = np.lexsort((marks, every))
    differ = (every[order][1:] == every[order][:-1]) & (marks[order][1:] != marks[order][:-1])
    doubtful = np.unique(every[order][1:][differ])
    if len(doubtful):
        examples = int(np.isin(every, doubtful).sum())
        single = len(doubtful) == 1
        notes.append(
            f"{len(doubtful):,} {noun[:-1] if single else noun} {'occurs' if single else 'occur'} with different "
            f"labels, in {examples:,} examples: at most one label of each can be right"
        )
    return notes


def _untested(labels: Sequence[NDArray[Any]], known: Sequence[str | int], *, all_files: bool) -> list[str]:
    """Classes without test examples, and those that the division left without training examples."""
    notes = []
    train, _, test = labels
    for name, part, effect in (
        ("test", test, "test results say nothing about them"),
        ("training", train, "they are never learned; choose a smaller --validation, or add examples"),
    ):
        if name == "training" and not all_files:
            continue  # other workers have the rest
        missing = np.flatnonzero(np.bincount(part, minlength=len(known)) == 0).tolist()
        if missing:
            names = ", ".join(shown(known[place]) for place in missing[:_NAMED])
            more = f", and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
            notes.append(f"classes without {name} examples: {len(missing):,} ({names}{more}): {effect}")
    return notes
