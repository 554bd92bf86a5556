"""Which configurations are accurate enough to win by speed or cost, and for which of them that is not settled.

A configuration is set aside only if it is proven worse than the best by more than a margin, or learned nothing. The
chance that any is set aside wrongly is at most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from velodrome.judge.accuracy import Difference, Score, difference, scores_of
from velodrome.judge.blocks import FIRST_LOOK, Fit, margin
from velodrome.judge.compare import Row, metric_of, quality_of
from velodrome.judge.decide import MOST_MORE, Contest, ContestState
from velodrome.judge.measures import CONFIDENCE, Measure
from velodrome.tasks.base import Metric

#: Standard errors by which an accuracy must exceed that of guessing: a chance of 5 % for one that guesses.
_ABOVE_CHANCE = 1.645
#: A range of accuracies that reaches further than this says nothing.
_NOTHING = 0.5
#: A configuration that seems worse by this many margins is not recommended, although that may be chance.
_FAR = 3.0


@dataclass(frozen=True)
class Guarded:
    """Rows that may win, and, by name, why others may not and which accuracies are not settled."""

    eligible: tuple[Row, ...]
    total: int
    aside: Mapping[str, str] = field(default_factory=dict)
    unsettled: Mapping[str, str] = field(default_factory=dict)
    #: Those of `unsettled` that seem worse than the best by several margins: `test accuracy 0.523 against 0.918`.
    seen_worse: Mapping[str, str] = field(default_factory=dict)
    #: What the worst of those that are set aside measured, against the best; empty if none measured anything.
    lost: str = ""
    #: What the rows are judged by.
    metric: str = "accuracy"
    #: Whether no configuration at all is better than chance.
    nothing_learned: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything of this as short sentences; of several configurations the worst is named."""
        notes = []
        if self.aside:
            notes.append(f"{len(self.aside)} of {self.total} configurations set aside: {_first_of(self.aside)}")
        if self.unsettled:
            name, reason = next(iter(self.unsettled.items()))
            others = len(self.unsettled) - 1
            more = f", and so may {others} other{'' if others == 1 else 's'}" if others else ""
            notes.append(f"{self.metric} not settled: {name} may be {reason}{more}")
        if self.nothing_learned:
            notes.append(f"no configuration is better than chance in {self.metric}, so they are compared without it")
        return tuple(notes)


def _first_of(reasons: Mapping[str, str]) -> str:
    name, reason = next(iter(reasons.items()))
    more = len(reasons) - 1
    return f"{name}, {reason}{f', and {more} more' if more else ''}"


def guard(rows: Sequence[Row], metric: Metric, error_rate: float = 1 - CONFIDENCE) -> Guarded:
    """Set aside rows that are no better than chance, or proven worse than the best by more than the metric's margin.

    All runs of a row count. Every pair has its share of the error rate (Bonferroni), because the best is not known
    beforehand; intervals in sentences have the same confidence. A race that is judged after each of several
    repetitions passes the share of this one.
    """
    scores = {row.name: scores_of(row.results, metric.name, metric.fraction) for row in rows}
    if not any(scores.values()):
        return Guarded(tuple(rows), len(rows), metric=metric.name)
    aside: dict[str, str] = {
        row.name: f"which has no test {metric.name}" for row in rows if not scores[row.name]
    }
    left = [row for row in rows if scores[row.name]]
    guessing = {row.name: text for row in left if (text := _no_better_than_chance(row, scores[row.name], metric))}
    if len(guessing) == len(left):
        return Guarded(tuple(left), len(rows), aside, metric=metric.name, nothing_learned=True)
    left = [row for row in left if row.name not in guessing]
    means = {row.name: fmean(score.value for score in scores[row.name]) for row in left}
    best = (max if metric.better == "more" else min)(means, key=lambda name: means[name])
    allowed = abs(metric.limit(means[best]) - means[best])
    confidence = 1 - 2 * error_rate / max(2, len(left) * (len(left) - 1))
    deficits: dict[str, tuple[float, str]] = {}
    lost = {name: (math.inf, f"{name} was {reason}") for name, reason in guessing.items()}
    unsettled: dict[str, tuple[float, str]] = {}
    seen_worse: dict[str, str] = {}
    for name in means:
        if name == best:
            continue
        pair = (scores[best], scores[name]) if metric.better == "more" else (scores[name], scores[best])
        gap = difference(*pair)
        low, high = gap.interval(confidence)
        if gap.seeds_known and low > allowed:
            span = f"{_amount(low, metric)}–{_amount(high, metric)}"
            deficits[name] = gap.estimate, f"{metric.name} {_worse(gap, metric)} than {best} ({span})"
            lost[name] = gap.estimate, (
                f"test {metric.name} {metric.text(means[name])} of {name} against {metric.text(means[best])}: "
                f"{_worse(gap, metric)} ({span.replace('–', ' to ')})")
        elif high > allowed:
            unsettled[name] = gap.estimate, _at_worst(gap, high, metric, best)
            if gap.estimate > _FAR * allowed:
                mine, most = metric.text(means[name]), metric.text(means[best])
                seen_worse[name] = f"its test {metric.name} was {mine} against {most}"
    aside = guessing | _worst_first(deficits) | aside
    return Guarded(tuple(row for row in left if row.name not in deficits), len(rows), aside, _worst_first(unsettled),
                   seen_worse, next(iter(_worst_first(lost).values()), ""), metric.name)


def _worst_first(reasons: Mapping[str, tuple[float, str]]) -> dict[str, str]:
    return {name: text for name, (_, text) in sorted(reasons.items(), key=lambda item: -item[1][0])}


def _no_better_than_chance(row: Row, scores: Sequence[Score], metric: Metric) -> str | None:
    """Why the accuracy of a row may be that of guessing; None if it is not, or if the classes are not known."""
    guesses = [max(map(sum, table)) / sum(map(sum, table)) for result in row.results
               if (table := result.confusion) and any(map(sum, table))]
    if not guesses or not metric.fraction:
        return None
    chance, mean, total = fmean(guesses), fmean(score.value for score in scores), min(score.total for score in scores)
    if not total or mean > chance + _ABOVE_CHANCE * math.sqrt(chance * (1 - chance) / total):
        return None
    return f"no better than chance ({metric.text(mean)}; guessing the most common class gives {metric.text(chance)})"


def _amount(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f}" if metric.fraction else metric.text(value)


def _worse(gap: Difference, metric: Metric) -> str:
    """`1.2 points lower`."""
    words = ("lower", "higher") if metric.better == "more" else ("higher", "lower")
    amount = _amount(abs(gap.estimate), metric)
    unit = (" point" if amount == "1.0" else " points") if metric.fraction else ""
    return f"{amount}{unit} {words[gap.estimate < 0]}"


def _at_worst(gap: Difference, high: float, metric: Metric, best: str) -> str:
    """`up to 1.2 points lower than torch/single`: how much worse it may be, to follow "may be"."""
    unit = " points" if metric.fraction else ""
    worse = "lower" if metric.better == "more" else "higher"
    if not math.isfinite(high) or (metric.fraction and high > _NOTHING):
        return f"{worse} than {best}, which {'one seed' if not gap.seeds_known else 'so few runs'} cannot tell"
    seen = _amount(gap.estimate, metric)
    notes = [f"{seen} so far"] if gap.estimate > 0 and float(seen) > 0 else []
    notes += [] if gap.seeds_known else ["other seeds not tried"]
    aside = f" ({'; '.join(notes)})" if notes else ""
    most = _amount(_up(high) if metric.fraction else high, metric)
    return f"up to {most}{unit} {worse} than {best}{aside}"


def _up(share: float) -> float:
    """Rounded up to tenths of a point: what may exceed a margin must not read as if it did not."""
    return math.ceil(1000 * share - 1e-9) / 1000


#: With more configurations than this only the one that is ahead is compared with the others.
_ALL_PAIRS = 12
#: Freedom of a normal distribution.
_MANY = 10_000.0


def accuracy_contest(rows: Sequence[Row], metric: Metric, tolerance: float) -> Contest:
    """A contest of configurations in a metric that is a fraction of the test examples."""
    scores = [scores_of(row.results, metric.name, metric.fraction) for row in rows]
    seeds = sorted({score.seed for row_scores in scores for score in row_scores})
    sign = 1.0 if metric.better == "more" else -1.0

    def fit_at(look: int) -> Fit:
        held = set(seeds[:look])
        return _fit([[score for score in row_scores if score.seed in held] for row_scores in scores], sign)

    return Contest(len(rows), len(seeds), tolerance, fit_at)


def limited_by_test_set(contest: Contest, standing: ContestState) -> bool:
    """Whether the survivors seem level, and the test set is too small to show it however often they run.

    Where seeds still leave more doubt than the test set, more runs may change what seems level.
    """
    left = list(standing.survivors)
    if standing.looks < FIRST_LOOK or len(left) < 2:
        return False
    fitted = contest.fit_at(contest.looks)
    pairs = [(first, other) for first in left for other in left
             if first < other and np.isfinite(fitted.error[0, first, other])]
    if not pairs or fitted.lasting is None:
        return False
    seen = np.array([abs(fitted.estimate[0, first, other]) for first, other in pairs])
    lasting = np.array([fitted.lasting[0, first, other] for first, other in pairs])
    errors = np.array([fitted.error[0, first, other] for first, other in pairs])
    if (2 * lasting**2 < errors**2).any():
        return False
    reach = lasting * margin(np.array([_MANY]), contest.looks + MOST_MORE, float(len(left)), contest.size)
    return bool((seen < contest.tolerance).all() and ((seen < reach) & (seen + reach >= contest.tolerance)).any())


def _fit(scores: Sequence[Sequence[Score]], sign: float) -> Fit:
    size = len(scores)
    estimate, error, freedom = np.zeros((size, size)), np.full((size, size), np.inf), np.ones((size, size))
    lasting = np.zeros((size, size))
    means = [sign * float(np.mean([score.value for score in row_scores])) if row_scores else -np.inf
             for row_scores in scores]
    firsts = range(size) if size <= _ALL_PAIRS else [int(np.argmax(means))]
    for first in firsts:
        for second in range(size):
            if first == second or not scores[first] or not scores[second] or np.isfinite(error[first, second]):
                continue
            gap = difference(scores[first], scores[second])
            estimate[first, second] = sign * gap.estimate
            estimate[second, first] = -sign * gap.estimate
            if gap.seeds_known:
                error[first, second] = error[second, first] = gap.error
                freedom[first, second] = freedom[second, first] = gap.freedom
                lasting[first, second] = lasting[second, first] = gap.lasting
    return Fit(estimate[None], error[None], freedom[None], np.zeros((1, size, 1), bool), lasting[None])


@dataclass(frozen=True)
class TwoQualities:
    """How good the models of two groups are, on average; None where that is not known."""

    quality: Measure
    metric: Metric
    means: tuple[float | None, float | None]

    @classmethod
    def of(cls, groups: Sequence[Sequence[Row]]) -> TwoQualities:
        rows = [row for group in groups for row in group]
        quality = quality_of(rows)
        first, second = ([mean for row in group if (mean := row.mean(quality.name)) is not None]
                         for group in groups)
        return cls(quality, metric_of(rows), (fmean(first) if first else None, fmean(second) if second else None))

    def _differ_by(self, times: float) -> bool:
        """Whether they differ by more than so many times the metric's margin."""
        first, second = self.means
        if first is None or second is None:
            return False
        best = (max if self.metric.better == "more" else min)(first, second)
        return abs(first - second) > times * abs(self.metric.limit(best) - best)

    @property
    def differ(self) -> bool:
        return self._differ_by(1.0)

    @property
    def is_far_worse(self) -> bool:
        """Whether the first seems to learn so much less that its speed is no reason to use it."""
        first, second = self.means
        if first is None or second is None or (first > second) == (self.metric.better == "more"):
            return False
        return self._differ_by(_FAR)

    @property
    def against(self) -> str:
        """`its test accuracy was 0.5230 against 0.9180`."""
        first, second = (self.quality.text(mean or 0.0) for mean in self.means)
        return f"its {self.quality.heading} was {first} against {second}"
