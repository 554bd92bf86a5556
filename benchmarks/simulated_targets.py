"""Simulated races to a target that some runs miss, judged by the product's own rule after every repetition.

A configuration reaches the target with some chance. All of them take equally long per success, so that every claim
about that is false; those that miss it now and then are faster whenever they reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from velodrome.judge.attempts import Attempts, contest_of_attempts, cost_of_unseen
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.decide import decide

TOLERANCE = 0.05
#: What a run takes that misses the target, compared with one that reaches it.
MISS = 1.5


@dataclass(frozen=True)
class Targets:
    """What is true of a race to a target: the chance of each configuration, and the noise of its runs."""

    chances: tuple[float, ...]
    noise: float

    @property
    def name(self) -> str:
        return f"chances {', '.join(f'{chance:g}' for chance in self.chances)}, noise {100 * self.noise:g} %"

    def seconds(self) -> np.ndarray:
        """Of a run that reaches the target, so that a success takes everyone one second."""
        chances = np.array(self.chances)
        return 1 / (1 + (1 - chances) / chances * MISS)


def target_worlds() -> Iterator[Targets]:
    """Races in which all are equal per success."""
    for chance in (0.9, 0.8, 0.6):
        yield Targets((1.0, chance), 0.02)
    yield Targets((1.0, 0.8), 0.15)
    yield Targets((0.8, 0.8), 0.15)
    yield Targets((1.0, 0.8, 0.8, 0.8), 0.05)


@dataclass
class Claims:
    """In how many races something false was claimed, at any look."""

    #: About the time of a run that reaches the target, while none had missed it.
    reaching: int = 0
    #: About the time per success.
    per_success: int = 0
    #: About either.
    any: int = 0
    #: As if "faster whenever it reaches the target" had been said of the time per success.
    unguarded: int = 0


def false_claims(world: Targets, seed: int, races: int, last: int) -> Claims:
    """Races that are looked at after every repetition up to the last, whatever was claimed before."""
    draw, found = np.random.default_rng(seed), Claims()
    size, fast = len(world.chances), world.seconds()
    for _ in range(races):
        reached = draw.random((size, last)) < np.array(world.chances)[:, None]
        spent = fast[:, None] * np.where(reached, 1.0, MISS) * np.exp(world.noise * draw.normal(size=(size, last)))
        reaching, per_success, unguarded = False, False, False
        for look in _looks(reached):
            entries = [_attempts(spent[one, :look], reached[one, :look]) for one in range(size)]
            able = [one for one in range(size) if entries[one].successes]
            clean = all(entries[one].always for one in able)
            for drop in decide(contest_of_attempts([entries[one] for one in able], TOLERANCE)).drops:
                winner, loser = able[drop.winner], able[drop.loser]
                seen = not entries[winner].always or not entries[loser].always
                unguarded |= clean
                reaching |= not seen and bool(fast[winner] >= fast[loser])
                per_success |= seen or drop.lead.low > cost_of_unseen(look, size)
        found.reaching += reaching
        found.per_success += per_success
        found.any += reaching or per_success
        found.unguarded += unguarded or per_success
    return found


def _looks(reached: np.ndarray) -> list[int]:
    """The last look of each time in which the same configurations had missed the target: it repeats all before it."""
    last = reached.shape[1]
    first = {int(np.argmin(row)) for row in reached if not row.all()}
    return [look for look in sorted({*first, last}) if look >= FIRST_LOOK]


def _attempts(spent: np.ndarray, reached: np.ndarray) -> Attempts:
    blocks = [(number, 0) for number in range(1, len(spent) + 1)]
    return Attempts(
        {block: float(amount) for block, amount in zip(blocks, spent, strict=True) if math.isfinite(amount)},
        frozenset(block for block, success in zip(blocks, reached, strict=True) if success),
        tuple(block for block, success in zip(blocks, reached, strict=True) if not success),
    )
