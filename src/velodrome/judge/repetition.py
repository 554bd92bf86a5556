"""Which repetition of its race a run belongs to: the block in which every configuration ran once.

Repetitions are known by their seeds, which all configurations of a race share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The seed of a repetition, and the how manieth run of its configuration with that seed it is. Blocks sort in the order
#: in which they ran.
Block = tuple[int, int]


def seed_of(result: Mapping[str, Any]) -> int:
    """The seed of a run; 0 where an older result has none."""
    job = result.get("job") or {}
    return int(result.get("seed") or job.get("seed") or 0)


def blocks_of(
    finished: Mapping[str, Sequence[Mapping[str, Any]]], failures: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, tuple[Block, ...]]:
    """The blocks of the finished runs of every configuration, then those of its failures, in the order given.

    A failure belongs to the block in which it was run again, if it was. Where configurations have no seed in common,
    because a race gave each its own, the first runs of all are one block, the second ones another, and so on.
    """
    places = {key: [*_places(group), *_places(failures.get(key, ()))] for key, group in finished.items()}
    shared = set.intersection(*({seed for seed, _ in found} for found in places.values())) if places else set()
    if shared:
        return {key: tuple(found) for key, found in places.items()}
    ranks = {key: {block: (rank, 0) for rank, block in enumerate(sorted(set(found)))} for key, found in places.items()}
    return {key: tuple(ranks[key][block] for block in found) for key, found in places.items()}


def _places(results: Sequence[Mapping[str, Any]]) -> list[Block]:
    seeds = [seed_of(result) for result in results]
    return [(seed, seeds[:place].count(seed)) for place, seed in enumerate(seeds)]
