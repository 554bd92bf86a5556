"""What a race could save at best: a sequential test that knows noise and lead, which no real race does.

Wald's test of which configuration is best, one repetition after another: it knows how far the others are behind and how
much runs scatter, and it drops whoever is as good as excluded.
"""

from __future__ import annotations

import math

import numpy as np
from simulated import World, batches


def ideal(world: World, seed: int, races: int, error: float, least: int = 1) -> tuple[float, float]:
    """How often such a test finds the best, and its run-seconds; nothing is decided before `least` repetitions."""
    draw, right, seconds = np.random.default_rng(seed), 0, 0.0
    lead, limit = math.log1p(world.lead), math.log((1 - error) / error)
    for count in batches(races):
        left = np.ones((count, world.size), bool)
        evidence, before = np.zeros(left.shape), np.zeros(count)
        for look in range(1, 1000):
            block = world.block(draw, before, left)
            before += left.sum(1)
            seconds += float(np.nansum(np.exp(-block)))
            evidence += np.where(left, np.nan_to_num(block), 0.0) * lead / world.noise**2
            if look < least:
                continue
            best = np.where(left, evidence, -np.inf).max(1, keepdims=True)
            left &= evidence > best - limit - math.log(world.size - 1)
            decided = left.sum(1) == 1
            right += int(left[decided, 0].sum())
            left[decided] = False
            if not left.any():
                break
    return right / races, seconds / races
