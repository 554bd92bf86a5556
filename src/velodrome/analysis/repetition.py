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


def blocks_of(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[Block, ...]]:
    """The blocks of all runs, finished or not, by configuration and in the order given.

    Where configurations have no seed in common, because a race gave each its own, the first runs of all are one block,
    the second ones another, and so on.
    """
    seeds = {key: [seed_of(result) for result in group] for key, group in groups.items() if group}
    shared = set.intersection(*map(set, seeds.values())) if seeds else set()
    found = {}
    for key, mine in seeds.items():
        places = [(seed, mine[:place].count(seed)) for place, seed in enumerate(mine)]
        ranks = {block: (rank, 0) for rank, block in enumerate(sorted(places))}
        found[key] = tuple(places if shared else (ranks[block] for block in places))
    return found
