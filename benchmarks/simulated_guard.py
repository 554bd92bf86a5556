"""Simulated races whose configurations differ in accuracy by exactly the margin, judged by the product's own guard.

None of them may be set aside. A fifth of the test examples is hard, the same ones for all; the others are always right.
Another seed makes a model a little better or worse. The guard looks after every repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from velodrome.events.result import TestScore
from velodrome.job.result import Result
from velodrome.judge.accuracy_guard import guard
from velodrome.judge.blocks import FIRST_LOOK, error_of_look
from velodrome.judge.compare import Row
from velodrome.tasks.correctness_bits import encode
from velodrome.tasks.registry import deciding_metrics

#: The share of test examples that are answered wrongly now and then.
HARD = 0.2


@dataclass(frozen=True)
class Guards:
    """What is true of such a race: accuracies are shares of the test examples."""

    size: int
    seeds: float
    examples: int = 1000
    accuracy: float = 0.95

    @property
    def name(self) -> str:
        return f"{self.size} configurations, seeds {100 * self.seeds:g} points, {self.examples} examples"


@dataclass(frozen=True)
class _Row:
    """What the guard reads of a row."""

    name: str
    results: tuple[Result, ...]


def set_aside_wrongly(world: Guards, seed: int, races: int, last: int) -> int:
    """In how many races one was set aside at any look; the first is the best, by the margin, the others are equal."""
    metric = next(metric for metric in deciding_metrics() if metric.name == "accuracy")
    draw, wrong = np.random.default_rng(seed), 0
    means = np.where(np.arange(world.size) == 0, world.accuracy, world.accuracy - metric.margin)
    for _ in range(races):
        hard = draw.random(world.examples) < HARD
        runs: list[list[Result]] = [[] for _ in means]
        for repetition in range(1, last + 1):
            for configuration, mean in enumerate(means):
                chance = 1 - (1 - mean - world.seeds * draw.normal()) / HARD
                right = ~hard | (draw.random(world.examples) < chance)
                test = TestScore.model_construct(accuracy=float(right.mean()), total=world.examples,
                                                 answers=encode(right), fingerprint="same")
                runs[configuration].append(Result.model_construct(seed=repetition, test=test, history=[]))
            rows = [_Row(f"c{number}", tuple(found)) for number, found in enumerate(runs)]
            if repetition < FIRST_LOOK:
                continue
            if guard(cast(list[Row], rows), metric, error_of_look(repetition)).aside:
                wrong += 1
                break
    return wrong
