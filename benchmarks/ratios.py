"""What repeated, interleaved measurements say: ratios and differences with 95 % intervals by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval, which is None where a single repetition gives none."""

    value: float
    low: float | None
    high: float | None
    repetitions: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Geometric mean of the ratios of paired measurements; the interval is that of the mean of their logarithms."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    plain = difference(logs, [0.0] * len(logs))
    low, high = (None if bound is None else math.exp(bound) for bound in (plain.low, plain.high))
    return Estimate(math.exp(plain.value), low, high, plain.repetitions)


def difference(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """Mean of the differences of paired measurements."""
    gaps = [a - b for a, b in zip(left, right, strict=True)]
    mean, count = statistics.fmean(gaps), len(gaps)
    if count < 2:
        return Estimate(mean, None, None, count)
    half = float(student.ppf(0.5 + _CONFIDENCE / 2, count - 1)) * statistics.stdev(gaps) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)
