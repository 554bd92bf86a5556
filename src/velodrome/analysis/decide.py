"""The decision rule of a race: after each repetition, which configurations are out, and whether one is left.

It replays the looks from the first on, so that a stored race is judged exactly as it was while it ran. Pure functions;
`docs/reference/verdicts.md` explains them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from velodrome.analysis.blocks import FIRST_LOOK, Array, Fit, Mask, fit, margin

Outcome = Literal["one", "level", "open"]
#: Further repetitions are not foreseen: what needs more than this is not worth settling.
MOST_MORE = 100


@dataclass(frozen=True)
class Range:
    """A difference between two configurations and how far it may be off, rivals and looks allowed for.

    On the scale of the contest: logarithms, or points of accuracy.
    """

    estimate: float
    low: float
    high: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def within(self, tolerance: float) -> bool:
        """Whether the difference is surely too small to matter."""
        return -tolerance < self.low and self.high < tolerance


@dataclass(frozen=True)
class Drop:
    """A configuration that is out: beaten by another beyond doubt, after so many repetitions."""

    loser: int
    winner: int
    look: int
    #: Winner minus loser.
    lead: Range


@dataclass(frozen=True)
class Contest:
    """Configurations by number, what their runs show after each look, and which difference is too small to matter."""

    size: int
    #: Complete or begun repetitions.
    looks: int
    tolerance: float
    #: Compares all pairs with the runs of the first so many repetitions; more is always better.
    fit_at: Callable[[int], Fit]


@dataclass(frozen=True)
class Standing:
    """How a contest stands after its last look."""

    outcome: Outcome
    survivors: tuple[int, ...]
    drops: tuple[Drop, ...]
    looks: int
    #: A difference below this is too small to matter.
    tolerance: float
    #: All pairs: first minus second.
    _estimate: Array
    _reach: Array
    #: Further repetitions that would probably settle it; None if that is beyond what is sensible.
    more: int | None = None

    def lead(self, first: int, second: int) -> Range:
        """First minus second, as it stands; for one that is out, as it stood then."""
        for drop in self.drops:
            if (drop.winner, drop.loser) == (first, second):
                return drop.lead
            if (drop.loser, drop.winner) == (first, second):
                return Range(-drop.lead.estimate, -drop.lead.high, -drop.lead.low)
        estimate, reach = float(self._estimate[first, second]), float(self._reach[first, second])
        return Range(estimate, estimate - reach, estimate + reach)

    def beaten(self, loser: int) -> Drop | None:
        """When and by whom a configuration was beaten; None if it was not."""
        return next((drop for drop in self.drops if drop.loser == loser), None)

    @property
    def leader(self) -> int:
        """The survivor that is ahead of the others, as it seems."""
        return max(self.survivors, key=lambda one: sum(self._estimate[one, other] for other in self.survivors))


def contest_of(logarithms: Array, tolerance: float, *, robust: bool = True) -> Contest:
    """A contest in a quantity of which more is better, by its logarithms: (configuration, block), NaN where missing."""
    def fit_at(look: int) -> Fit:
        return fit(logarithms[None, :, :look], robust=robust)

    return Contest(len(logarithms), logarithms.shape[1], math.log1p(tolerance), fit_at)


def decide(contest: Contest) -> Standing:
    """Replay all looks of a contest."""
    size = contest.size
    alive = np.ones(size, bool)
    drops: list[Drop] = []
    estimate, reach = np.zeros((size, size)), np.full((size, size), np.inf)
    found = None
    for look in range(1, contest.looks + 1):
        found = contest.fit_at(look)
        estimate = found.estimate[0]
        reach = _reach(found, look, alive, size)
        if look < FIRST_LOOK:
            continue
        for drop in _beaten(estimate, reach, alive, look, contest.tolerance):
            drops.append(drop)
            alive[drop.loser] = False
    survivors = tuple(int(one) for one in np.flatnonzero(alive))
    outcome = _outcome(estimate, reach, survivors, contest.tolerance)
    more = _more(found, contest, survivors) if outcome == "open" and found is not None else None
    return Standing(outcome, survivors, tuple(drops), contest.looks, contest.tolerance, estimate, reach, more)


def _reach(found: Fit, look: int, alive: Mask, entered: int) -> Array:
    wide = margin(found.freedom[0], look, float(alive.sum()), entered)
    with np.errstate(invalid="ignore"):
        reach = wide * found.error[0]
    return np.where(np.isnan(reach), np.inf, reach)


def _beaten(estimate: Array, reach: Array, alive: Mask, look: int, tolerance: float) -> Sequence[Drop]:
    """Those that another survivor beats, each with the one that does so most clearly.

    A lead that is surely too small to matter beats nobody, however sure it is.
    """
    counts = alive[:, None] & alive[None, :] & (estimate + reach >= tolerance)
    low = np.where(counts, estimate - reach, -np.inf)
    np.fill_diagonal(low, -np.inf)
    losers = np.flatnonzero((low > 0).any(0))
    if len(losers) == alive.sum():  # a circle, which only missing runs can make: nobody is out
        return []
    found = []
    for loser in losers:
        winner = int(low[:, loser].argmax())
        seen, off = float(estimate[winner, loser]), float(reach[winner, loser])
        found.append(Drop(int(loser), winner, look, Range(seen, seen - off, seen + off)))
    return found


def _outcome(estimate: Array, reach: Array, survivors: Sequence[int], tolerance: float) -> Outcome:
    if len(survivors) == 1:
        return "one"
    left = np.ix_(survivors, survivors)
    off = np.abs(estimate[left]) + reach[left]
    np.fill_diagonal(off, 0.0)
    return "level" if (off < tolerance).all() else "open"


def _more(found: Fit, contest: Contest, survivors: Sequence[int]) -> int | None:
    """Further repetitions after which every survivor would be out or level, were the differences and noise as seen."""
    if contest.looks < 2 or not np.isfinite(found.error[0][np.ix_(survivors, survivors)]).all():
        return max(1, FIRST_LOOK - contest.looks)
    left = np.ix_(survivors, survivors)
    seen = np.abs(found.estimate[0][left])
    best = int(found.estimate[0][left].sum(1).argmax())
    for more in range(1, MOST_MORE + 1):
        look = contest.looks + more
        if look < FIRST_LOOK:
            continue
        error = found.error[0][left] * math.sqrt(contest.looks / look)
        freedom = found.freedom[0][left] * (look - 1) / max(1, contest.looks - 1)
        reach = margin(freedom, look, float(len(survivors)), contest.size) * error
        level = seen + reach < contest.tolerance
        beaten = seen[best] > reach[best]
        near = np.flatnonzero(~beaten)
        if level[np.ix_(near, near)][~np.eye(len(near), dtype=bool)].all():
            return more
    return None
