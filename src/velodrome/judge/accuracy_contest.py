"""A contest in accuracy: differences in points, with the errors of seeds and of the finite test set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from velodrome.judge.accuracy import Score, difference, scores_of
from velodrome.judge.blocks import FIRST_LOOK, Fit, margin
from velodrome.judge.compare import Row
from velodrome.judge.decide import MOST_MORE, Contest, Standing
from velodrome.tasks.base import Metric

#: With more configurations than this only the one that is ahead is compared with the others.
_ALL_PAIRS = 12
#: Freedom of a normal distribution.
_MANY = 10_000.0


def accuracy_contest(rows: Sequence[Row], metric: Metric, tolerance: float) -> Contest:
    """A contest of configurations in a metric that is a fraction of the test examples."""
    scores = [scores_of(row.results, metric.name, metric.fraction) for row in rows]
    seeds = sorted({score.seed for found in scores for score in found})
    sign = 1.0 if metric.better == "more" else -1.0

    def fit_at(look: int) -> Fit:
        held = set(seeds[:look])
        return _fit([[score for score in found if score.seed in held] for found in scores], sign)

    return Contest(len(rows), len(seeds), tolerance, fit_at)


def limited_by_test_set(contest: Contest, standing: Standing) -> bool:
    """Whether the survivors seem level, and the test set is too small to show it however often they run.

    Where seeds still leave more doubt than the test set, more runs may change what seems level.
    """
    left = list(standing.survivors)
    if standing.looks < FIRST_LOOK or len(left) < 2:
        return False
    found = contest.fit_at(contest.looks)
    pairs = [(one, other) for one in left for other in left if one < other and np.isfinite(found.error[0, one, other])]
    if not pairs or found.lasting is None:
        return False
    seen = np.array([abs(found.estimate[0, one, other]) for one, other in pairs])
    lasting = np.array([found.lasting[0, one, other] for one, other in pairs])
    errors = np.array([found.error[0, one, other] for one, other in pairs])
    if (2 * lasting**2 < errors**2).any():
        return False
    reach = lasting * margin(np.array([_MANY]), contest.looks + MOST_MORE, float(len(left)), contest.size)
    return bool((seen < contest.tolerance).all() and ((seen < reach) & (seen + reach >= contest.tolerance)).any())


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
