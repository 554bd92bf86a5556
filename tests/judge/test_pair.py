"""Two configurations side by side: how often their sentences claim a difference that is not there."""

from __future__ import annotations

import numpy as np
import pytest

from synthetic_races import result
from typed_judge import as_result
from velodrome.judge.measures import Result
from velodrome.judge.pairs import compare_pair

pytestmark = pytest.mark.unit

COMPARISONS, REPETITIONS = 400, 4


def _noisy(generator: np.random.Generator, seed: int) -> Result:
    """A run whose judged measures all vary by 5 %, each on its own."""
    made = result(seed=seed)
    throughput, seconds = dict(made["throughput"]), dict(made["seconds"])
    throughput["examples_per_second"] = 1000 * np.exp(generator.normal(0, 0.05))
    for name in ("train", "total"):
        seconds[name] = 10 * np.exp(generator.normal(0, 0.05))
    return as_result({**made, "throughput": throughput, "seconds": seconds})


def test_equal_configurations_are_seldom_said_to_differ_in_any_measure() -> None:
    generator = np.random.default_rng(3)
    joint = alone = 0
    for _ in range(COMPARISONS):
        pair = compare_pair(*((name, [_noisy(generator, seed) for seed in range(REPETITIONS)]) for name in "AB"))
        joint += any(" beats " in sentence for sentence in pair.sentences())
        judged = [line.ratio for line in pair.lines if line.judged]
        alone += any(place is not None and (place.above_one or place.below_one) for place in judged)
    assert alone > 0.08 * COMPARISONS  # what intervals of one measure each would claim
    assert joint < 0.06 * COMPARISONS
    assert pair.sentences()[-1].startswith("All of these statements hold together in 95 of 100 comparisons")
