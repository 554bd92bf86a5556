"""A contest in accuracy: differences in points, with the errors of seeds and of the finite test set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from velodrome.analysis.accuracy import Score, difference, scores_of
from velodrome.analysis.blocks import Fit
from velodrome.analysis.compare import Row
from velodrome.analysis.decide import Contest
from velodrome.tasks.base import Metric

#: With more configurations than this only the one that is ahead is compared with the others.
_ALL_PAIRS = 12


def accuracy_contest(rows: Sequence[Row], metric: Metric, tolerance: float) -> Contest:
    """A contest of configurations in a metric that is a fraction of the test examples."""
    scores = [scores_of(row.results, metric.name, metric.fraction) for row in rows]
    seeds = sorted({score.seed for found in scores for score in found})
    sign = 1.0 if metric.better == "more" else -1.0

    def fit_at(look: int) -> Fit:
        held = set(seeds[:look])
        return _fit([[score for score in found if score.seed in held] for found in scores], sign)

    return Contest(len(rows), len(seeds), tolerance, fit_at)


def _fit(scores: Sequence[Sequence[Score]], sign: float) -> Fit:
    size = len(scores)
    estimate, error, freedom = np.zeros((size, size)), np.full((size, size), np.inf), np.ones((size, size))
    lasting = np.zeros((size, size))
    means = [sign * float(np.mean([score.value for score in found])) if found else -np.inf for found in scores]
    firsts = range(size) if size <= _ALL_PAIRS else [int(np.argmax(means))]
    for first in firsts:
        for second in range(size):
            if first == second or not scores[first] or not scores[second] or np.isfinite(error[first, second]):
                continue
            found = difference(scores[first], scores[second])
            estimate[first, second] = sign * found.estimate
            estimate[second, first] = -sign * found.estimate
            if found.seeds_known:
                error[first, second] = error[second, first] = found.error
                freedom[first, second] = freedom[second, first] = found.freedom
                lasting[first, second] = lasting[second, first] = found.lasting
    return Fit(estimate[None], error[None], freedom[None], np.zeros((1, size, 1), bool), lasting[None])
