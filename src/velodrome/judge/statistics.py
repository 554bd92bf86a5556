"""Means with ranges, and ratios with 95 % intervals: the only place that decides whether one sample beats another.

Plain functions on plain numbers, whatever they measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """What repeated runs measured: their mean and range."""

    values: tuple[float, ...]
    #: The smallest step in which the quantity can be counted (one test example, for accuracy).
    resolution: float = 0.0
    #: Whether the mean is geometric, so that the ratio of two means is the mean of ratios.
    geometric: bool = False

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return self.centre if self.geometric or self.low == self.high else fmean(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def centre(self) -> float:
        """The geometric mean, or the plain one where a value is not positive."""
        if self.low == self.high:  # the same to the last bit
            return self.low
        if self.low <= 0:
            return fmean(self.values)
        return math.exp(fmean(map(math.log, self.values)))

    @property
    def log_variance(self) -> float:
        """Of the logarithms; never less than what counting in whole steps hides."""
        hidden = min(1.0, self.resolution / self.centre) ** 2 / 12
        return max(variance(map(math.log, self.values)), hidden)


@dataclass(frozen=True)
class Ratio:
    """How many times larger one quantity is than another; without repetitions there is no interval."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    @property
    def above_one(self) -> bool:
        return self.low is not None and self.low > 1

    @property
    def below_one(self) -> bool:
        return self.high is not None and self.high < 1

    def divided_by(self, number: float) -> Ratio:
        low, high = (None if end is None else end / number for end in (self.low, self.high))
        return Ratio(self.estimate / number, low, high)

    def inverted(self) -> Ratio:
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Ratio(1 / self.estimate, low, high)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """Student's t below which a share of `probability` lies."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def ratio(above: Spread, below: Spread, confidence: float = CONFIDENCE) -> Ratio | None:
    """The ratio of two geometric means with Welch's interval on logarithms; None where a value is not positive."""
    if above.low <= 0 or below.low <= 0:
        return None
    difference = math.log(above.centre) - math.log(below.centre)
    if above.count < 2 or below.count < 2:
        return Ratio(math.exp(difference))
    parts = [sample.log_variance / sample.count for sample in (above, below)]
    spread = sum(parts)
    if spread == 0:
        return Ratio(math.exp(difference), math.exp(difference), math.exp(difference))
    freedom = spread**2 / sum(
        part**2 / (sample.count - 1) for part, sample in zip(parts, (above, below), strict=True)
    )
    # Few and very different runs give intervals beyond the range of floats: e to the 100th is as inconclusive.
    reach = min(100.0, t_quantile((1 + confidence) / 2, freedom) * math.sqrt(spread))
    return Ratio(math.exp(difference), math.exp(difference - reach), math.exp(difference + reach))
