"""Ratios between the configurations of a race, paired by repetition, with plain 95 % intervals for tables.

Verdicts use wider ranges, which allow for all rivals and looks: `judge/decide.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from velodrome.judge.blocks import fit
from velodrome.judge.outliers import Array
from velodrome.judge.repetition import Block
from velodrome.judge.statistics import CONFIDENCE, Ratio, t_quantile

#: Levels of intervals with so few degrees of freedom, one less than repetitions. By simulation.
_FEW = {2: 0.94, 3: 0.945, 4: 0.945}


def logarithms(values: Sequence[Mapping[Block, float]]) -> Array:
    """A table of (configuration, block), in the order of both; NaN where a value is missing or not positive."""
    blocks = sorted({block for found in values for block in found})
    table = np.array([[found.get(block, math.nan) for block in blocks] for found in values], dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(table)
    return np.where(np.isfinite(logs), logs, math.nan)


def nominal(freedom: float) -> float:
    """The level of Student's t of a plain interval that is to contain the truth in 95 of 100 races.

    Up to five repetitions cannot tell a straggler from noise; where there are some, intervals are wider than need be.
    The level stands in the middle: a little less than 95 % without stragglers, a little more with 10 % of them.
    """
    return _FEW.get(round(freedom), CONFIDENCE)


def paired_ratios(values: Mapping[str, Mapping[Block, float]]) -> Callable[[str, str], Ratio | None]:
    """A function from two names to the ratio of the first over the second; None if they share no two repetitions."""
    places = {name: place for place, name in enumerate(values)}
    logs = logarithms(list(values.values()))

    def over(first: str, second: str) -> Ratio | None:
        # By the runs of these two only: so the interval is right whatever the noise of the others is.
        found = fit(logs[None, [places[first], places[second]]], plain=True)
        estimate, error, freedom = (float(of[0, 0, 1]) for of in (found.estimate, found.error, found.freedom))
        if not math.isfinite(error):
            return None
        # Few and very different runs give intervals beyond the range of floats: e to the 100th is as inconclusive.
        reach = min(100.0, error * t_quantile((1 + nominal(freedom)) / 2, freedom))
        return Ratio(math.exp(estimate), math.exp(estimate - reach), math.exp(estimate + reach))

    return over
