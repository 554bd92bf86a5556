"""Divides examples into training, validation and test: seeded, stratified, and the same on every machine and with every
release of numpy.

A column of a table, or folders, may say which part an example belongs to; what is missing is drawn from training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from velodrome.data.base import Faults
from velodrome.errors import BadRequest
from velodrome.printable import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRAIN, VALIDATION, TEST = 0, 1, 2
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
    import numpy as np

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


def divide(
    labels: NDArray[np.int64], parts: NDArray[np.int8], seed: int, validation: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Places of the examples of each part as they were given; missing test and validation sets are drawn from training,
    stratified and seeded."""
    import numpy as np

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


def large_enough(
    labels: NDArray[np.int64], parts: NDArray[np.int8], class_names: Sequence[str], faults: Faults,
    *, noun: str = "images",
) -> NDArray[np.bool_]:
    """Which classes have an example to train on, and one more for each part that is drawn from training; the others are
    faults."""
    import numpy as np

    sizes = np.bincount(labels[parts == TRAIN], minlength=len(class_names))
    fewest = 1 + sum(not (parts == part).any() for part in (VALIDATION, TEST))
    for place in np.flatnonzero(sizes < fewest).tolist():
        if sizes[place]:
            faults.add(f"classes with fewer than {fewest} training {noun}", class_names[place], f"{sizes[place]}")
        else:
            faults.add(f"classes without training {noun}", class_names[place])
    return np.asarray(sizes >= fewest)


def part_column(heads: Sequence[str], taken: Collection[str]) -> str | None:
    """The column of a table that divides the rows by its name."""
    free = {head.strip().lower(): head for head in reversed(heads) if head not in taken}
    return next((free[name] for name in PART_COLUMNS if name in free), None)


def looks_like_parts(words: Collection[str]) -> bool:
    """Whether these words, all that a column has, name the training part and another one, and nothing else."""
    parts = {PART_NAMES.get(word.strip().lower()) for word in words}
    return None not in parts and len(parts) > 1


def overlooked_note(column: str, used_as: str, way_out: str) -> str:
    """The sentence about a column that seems to divide the rows, although its name does not say so."""
    return f"column {shown(column)!r} seems to divide the rows, and is {used_as}: {way_out} divides them by it"
