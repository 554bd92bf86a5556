"""Differences between our configurations in one quantity, as far as the runs show them, for checks of claims.

All runs of a study are compared at once, by the judge's own model of repetitions and noise. Half of the judge's error
rate is for claims that are confirmed wrongly, divided by the claims, because all comparisons of one must hold; half is
for claims that are refuted wrongly, divided by all comparisons, because one suffices. So at most one study in twenty
says anything false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev

import numpy as np

from velodrome.judge.accuracy import difference, scores_of
from velodrome.judge.blocks import FIRST_LOOK, RESOLUTION, Fit, error_of_look, fit, logarithms
from velodrome.judge.compare import Row
from velodrome.judge.conditions import slowdown
from velodrome.judge.measures import t_quantile
from velodrome.studies.format import Sense
from velodrome.studies.quantities import QUANTITIES, Quantity, quantity_named

#: An interval whose ends differ by more than this factor's logarithm is not worth reading.
_SAYS_NOTHING = math.log(1000)
#: Quantities of which less is faster.
_TIMES = ("seconds", "total")


@dataclass(frozen=True)
class Lead:
    """How far one thing is above another: the logarithm of a ratio, or a difference of shares."""

    estimate: float
    #: Half of the interval that decides what is refuted; infinite where there are too few repetitions.
    reach: float
    #: Half of the interval that decides what holds, which is no wider.
    near: float
    #: By how much more, and less, it may be because other programs slowed runs.
    above: float = 0.0
    below: float = 0.0
    is_ratio: bool = True
    #: Repetitions that both have.
    looks: int = 0

    @property
    def low(self) -> float:
        return self.estimate - self.reach - self.below

    @property
    def high(self) -> float:
        return self.estimate + self.reach + self.above

    @property
    def slowed(self) -> bool:
        return self.above > 0 or self.below > 0

    def minus(self, number: float) -> Lead:
        return replace(self, estimate=self.estimate - number)

    def plus(self, other: Lead) -> Lead:
        """The sum with a lead of other runs: their errors are independent."""
        return Lead(self.estimate + other.estimate, math.hypot(self.reach, other.reach),
                    math.hypot(self.near, other.near), self.above + other.above, self.below + other.below,
                    self.is_ratio, min(self.looks, other.looks))

    def is_so(self, sense: Sense, within: float) -> bool | None:
        """Whether it is more than 0, less, or within so much of it; None where the interval leaves that open."""
        least, most = self.estimate - self.near - self.below, self.estimate + self.near + self.above
        if sense == "same":
            margin = math.log1p(within) if self.is_ratio else within
            if -margin <= least and most <= margin:
                return True
            return False if self.low > margin or self.high < -margin else None
        holds, fails = (least > 0, self.high < 0) if sense == "more" else (most < 0, self.low > 0)
        return True if holds else False if fails else None

    def seems(self, sense: Sense, within: float) -> bool:
        """The same by the estimate alone."""
        return bool(Lead(self.estimate, 0.0, 0.0, is_ratio=self.is_ratio).is_so(sense, within))

    def text(self, factor: float = 1.0) -> str:
        """`1.23 (1.10–1.40)` times, or `+0.012 (+0.002 to +0.022)`; `factor` is what `minus` took away."""
        values = [self.estimate, self.low, self.high]
        if self.is_ratio:
            ratio, *ends = [factor * math.exp(min(value, 100.0)) for value in values]
            known = self.high - self.low < _SAYS_NOTHING
            return f"{ratio:.2f}" + (f" ({ends[0]:.2f}–{ends[1]:.2f})" if known else "")
        return f"{values[0]:+.4f}" + (f" ({values[1]:+.4f} to {values[2]:+.4f})" if math.isfinite(self.high) else "")


class Contrasts:
    """What the runs of a study show of one quantity, with intervals whose level allows for so many comparisons."""

    def __init__(self, quantity: str, rows: Sequence[Row], cores: int, comparisons: int, claims: int) -> None:
        self.quantity: Quantity = quantity_named(quantity)
        self._name = quantity
        self._cores = cores
        source = QUANTITIES["throughput"] if quantity == "speedup" else self.quantity
        values = [source.values(row, cores) for row in rows]
        self._values = {row.name: measured for row, measured in zip(rows, values, strict=True) if measured}
        self._rows = {row.name: row for row in rows if row.name in self._values}
        self._comparisons, self._claims = max(1, comparisons), max(1, claims)

    def measured(self, row: Row) -> bool:
        return row.name in self._values

    @property
    def _by_test_set(self) -> bool:
        return self.quantity.metric is not None and self.quantity.fraction

    @cached_property
    def _fit(self) -> Fit:
        tables = list(self._values.values())
        if not self.quantity.fraction:
            return fit(logarithms(tables)[None])
        blocks = sorted({block for table in tables for block in table})
        return fit(np.array([[[table.get(block, math.nan) for block in blocks] for table in tables]]))

    def _reaches(self, error: float, freedom: float, looks: int) -> tuple[float, float]:
        """Half of the intervals that decide what is refuted and what holds."""
        if looks < FIRST_LOOK or math.isinf(error):
            return math.inf, math.inf
        refuted, held = (t_quantile(1 - error_of_look(looks) / parts / 2, freedom)
                         for parts in (self._comparisons, self._claims))
        return error * refuted, error * min(held, refuted)

    def lead(self, first: Row, second: Row) -> Lead:
        """First over second; of speedups, the lead in throughput without what one worker has is `speedup`."""
        looks = len(self._values[first.name].keys() & self._values[second.name].keys())
        above, below = self._slowed(first, second)
        if self._by_test_set:
            metric = self.quantity.metric
            assert metric is not None
            gap = difference(*(scores_of(row.results, metric.name, metric.fraction) for row in (first, second)))
            error = gap.error if gap.seeds_known else math.inf
            return Lead(gap.estimate, *self._reaches(error, gap.freedom, looks), is_ratio=False, looks=looks)
        places = list(self._values)
        at_first, at_second = places.index(first.name), places.index(second.name)
        estimate, error, freedom = (float(of[0, at_first, at_second]) for of in
                                    (self._fit.estimate, self._fit.error, self._fit.freedom))
        reaches = self._reaches(error, freedom, looks)
        return Lead(estimate, *reaches, above, below, not self.quantity.fraction, looks)

    def level(self, row: Row, value: float) -> Lead:
        """A configuration's mean over, or minus, a value."""
        values = [*self._values[row.name].values()]
        ratio = not self.quantity.fraction and value > 0
        if ratio:
            values = [math.log(each / value) for each in values if each > 0]
        estimate = fmean(values) - (0.0 if ratio else value)
        if len(values) < FIRST_LOOK:
            return Lead(estimate, math.inf, math.inf, is_ratio=ratio, looks=len(values))
        error = max(stdev(values), RESOLUTION) / math.sqrt(len(values))
        total = row.results[0].test.total if self._by_test_set and row.results[0].test else None
        if total:
            mean = min(max(fmean(values), 0.0), 1.0)
            error = math.hypot(error, math.sqrt(mean * (1 - mean) / total))
        reaches = self._reaches(error, len(values) - 1, len(values))
        return Lead(estimate, *reaches, is_ratio=ratio, looks=len(values))

    def _slowed(self, first: Row, second: Row) -> tuple[float, float]:
        """By how much the lead of the first may be more, and less, than seen, because other programs slowed runs."""
        if not self.quantity.timed:
            return 0.0, 0.0
        slow, slow_other = (fmean(map(slowdown, row.results)) for row in (first, second))
        return (slow_other, slow) if self._name in _TIMES else (slow, slow_other)
