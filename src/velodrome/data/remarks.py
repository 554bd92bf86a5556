"""What makes a division misleading, as sentences: the same picture in two parts, one picture with several labels,
classes that are not tested.

Pictures are compared by fingerprints of their pixels, which are made once and kept with the prepared data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from velodrome.data.splits import Splits
from velodrome.printable import shown

Fingerprints = NDArray[np.uint64]
#: How many classes are named.
_NAMED = 10


def fingerprints(images: NDArray[np.uint8]) -> Fingerprints:
    """A number for each image: equal for equal pixels, and otherwise different."""
    return _numbers(np.ascontiguousarray(images[row]).data for row in range(images.shape[0]))


def fingerprints_of_file(path: Path, rows: NDArray[np.int64]) -> Fingerprints:
    """The same for rows of an `.npy` file of bytes, which may be larger than memory."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, _ = read_header(file)
        start, size = file.tell(), math.prod(shape[1:])

        def image(row: int) -> bytes:
            file.seek(start + row * size)
            return file.read(size)

        return _numbers(map(image, rows.tolist()))


def _numbers(images: Iterable[bytes | memoryview]) -> Fingerprints:
    sums = (hashlib.blake2b(pixels, digest_size=8).digest() for pixels in images)
    return np.frombuffer(b"".join(sums), np.uint64)


def with_remarks(splits: Splits, prints: Sequence[Fingerprints] | None) -> Splits:
    """The splits with notes about them; `prints` are those of training, validation and test."""
    found = tuple(_overlaps(splits, prints)) if prints is not None else splits.overlaps
    return replace(splits, notes=(*splits.notes, *found, *_untested(splits)), overlaps=found)


def _overlaps(splits: Splits, prints: Sequence[Fingerprints]) -> list[str]:
    """Images that are in two parts, and images with several labels."""
    every = np.concatenate(prints)
    if len(np.unique(every)) == len(every):
        return []
    train, validation, test = prints
    found = []
    for name, part, other, where in (
        ("test", test, train, "training"), ("validation", validation, train, "training"),
        ("test", test, validation, "validation"),
    ):
        if twice := int(np.isin(part, other).sum()):
            found.append(
                f"{twice:,} of {len(part):,} {name} images are also in the {where} set, pixel by pixel: remove them "
                f"from one of the two, or {name} results look better than they are"
            )
    labels = np.concatenate([part.labels for part in (splits.train, splits.validation, splits.test)])
    order = np.lexsort((labels, every))
    differ = (every[order][1:] == every[order][:-1]) & (labels[order][1:] != labels[order][:-1])
    doubtful = np.unique(every[order][1:][differ])
    if len(doubtful):
        examples = int(np.isin(every, doubtful).sum())
        found.append(
            f"{len(doubtful):,} images occur with different labels, in {examples:,} examples: at most one label of "
            "each can be right"
        )
    return found


def _untested(splits: Splits) -> list[str]:
    """Classes without test examples, and those that the division left without training examples."""
    found = []
    for name, part, effect in (
        ("test", splits.test, "test results say nothing about them"),
        ("training", splits.train, "they are never learned; choose a smaller --validation, or add examples"),
    ):
        if name == "training" and splits.own_files:
            continue  # other workers have the rest
        missing = np.flatnonzero(np.bincount(part.labels, minlength=splits.classes) == 0).tolist()
        if missing:
            known = splits.class_names or range(splits.classes)
            names = ", ".join(shown(known[place]) for place in missing[:_NAMED])
            more = f", and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
            found.append(f"classes without {name} examples: {len(missing):,} ({names}{more}): {effect}")
    return found
