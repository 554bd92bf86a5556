"""Divides examples into parts: seeded, stratified, and the same on every machine and with every release of numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import ExamplePart, image_part


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


def divide(part: ExamplePart, marked: NDArray[np.bool_]) -> tuple[ExamplePart, ExamplePart]:
    """The examples that are not marked, and those that are, each in their order."""
    rest, chosen = np.flatnonzero(~marked), np.flatnonzero(marked)
    return image_part(part.images[rest], part.labels[rest]), image_part(part.images[chosen], part.labels[chosen])
