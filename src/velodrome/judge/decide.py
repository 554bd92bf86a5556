"""The decision rule of a race: after each repetition, which configurations are out, and whether one is left.

It replays the looks from the first on, so that a stored race is judged exactly as it was while it ran. Pure functions;
`docs/reference/verdicts.md` explains them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from velodrome.judge.blocks import FIRST_LOOK, Array, Fit, Mask, fit, margin

Outcome = Literal["one", "level", "open"]
#: Degrees of freedom, look, configurations left, configurations entered: standard errors that a claim needs.
Margin = Callable[[Array, int, Array, int], Array]
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

    def within(self, tolerance: float) -> bool:
        """Whether the difference is proven to be too small to matter."""
        return -tolerance < self.low and self.high < tolerance


@dataclass(frozen=True)
class Drop:
    """A configuration that is out: certainly beaten by another, after so many repetitions."""

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

    def with_slowed(self, most_at: Callable[[int], Array]) -> Contest:
        """The same contest where each configuration may be better than its runs show, because something else slowed
        them: by how much at most, on average over the first so many repetitions."""
        return replace(self, fit_at=lambda look: slowed_fit(self.fit_at(look), most_at(look)[None]))


@dataclass(frozen=True)
class ContestState:
    """How a contest stands after its last look."""

    outcome: Outcome
    survivors: tuple[int, ...]
    drops: tuple[Drop, ...]
    looks: int
    #: A difference below this is too small to matter.
    tolerance: float
    #: All pairs: first minus second, and by how much it may be less.
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
        return _range(self._estimate, self._reach, first, second)

    def look_of(self, first: int, second: int) -> int:
        """After how many repetitions their lead stands: when one of them was out by the other, else after all."""
        return next((drop.look for drop in self.drops if {drop.winner, drop.loser} == {first, second}), self.looks)

    def beaten(self, loser: int) -> Drop | None:
        """When and by whom a configuration was beaten; None if it was not."""
        return next((drop for drop in self.drops if drop.loser == loser), None)

    @property
    def leader(self) -> int:
        """The survivor that is ahead of the others, as it seems."""
        return max(self.survivors, key=lambda number: sum(self._estimate[number, other] for other in self.survivors))


def contest_of(logarithms: Array, tolerance: float, *, robust: bool = True) -> Contest:
    """A contest in a quantity of which more is better, by its logarithms: (configuration, block), NaN where missing."""
    def fit_at(look: int) -> Fit:
        return fit(logarithms[None, :, :look], robust=robust)

    return Contest(len(logarithms), logarithms.shape[1], math.log1p(tolerance), fit_at)


def decide(contest: Contest) -> ContestState:
    """Replay all looks of a contest."""
    size = contest.size
    alive = np.ones((1, size), bool)
    drops: list[Drop] = []
    estimate, reach = np.zeros((1, size, size)), np.full((1, size, size), np.inf)
    fitted = None
    for look in range(1, contest.looks + 1):
        fitted = contest.fit_at(look)
        estimate = fitted.estimate
        reach, ahead = step(fitted, look, alive, contest.tolerance)
        for loser in np.flatnonzero(out(ahead)[0]):
            winner = int(ahead[0, :, loser].argmax())
            drops.append(Drop(int(loser), winner, look, _range(estimate[0], reach[0], winner, int(loser))))
        alive &= ~out(ahead)
    survivors = tuple(int(number) for number in np.flatnonzero(alive[0]))
    outcome: Outcome = "open"
    if len(survivors) == 1:
        outcome = "one"
    elif all_level(estimate, reach, alive, contest.tolerance)[0]:
        outcome = "level"
    more = _more(fitted, contest, survivors) if outcome == "open" and fitted is not None else None
    return ContestState(outcome, survivors, tuple(drops), contest.looks, contest.tolerance, estimate[0], reach[0], more)


def slowed_fit(fitted: Fit, most: Array) -> Fit:
    """A fit where configurations may be better by so much than their runs show, (race, configuration): whoever is ahead
    of one may be ahead by that much less."""
    return replace(fitted, unseen=fitted.hidden + np.broadcast_to(most[:, None, :], fitted.estimate.shape))


def _range(estimate: Array, reach: Array, first: int, second: int) -> Range:
    seen = float(estimate[first, second])
    return Range(seen, seen - float(reach[first, second]), seen + float(reach[second, first]))


def step(
    fitted: Fit, look: int, alive: Mask, tolerance: float, margin_at: Margin = margin
) -> tuple[Array, Array]:
    """One look at a batch of races: how much less each difference may be, and by how much each is surely ahead of each.

    Both are (race, configuration, configuration), `alive` is (race, configuration). Only survivors are ahead of one
    another, and not by a lead that is surely too small to matter. Where everyone would be out, which only missing runs
    can cause, nobody is.
    """
    entered = alive.shape[1]
    wide = margin_at(fitted.freedom, look, alive.sum(1)[:, None, None].astype(float), entered)
    with np.errstate(invalid="ignore"):
        reach = wide * fitted.error
    reach = np.where(np.isnan(reach), np.inf, reach) + fitted.hidden
    compared = alive[:, :, None] & alive[:, None, :] & ~np.eye(entered, dtype=bool)
    most = fitted.estimate + reach.swapaxes(1, 2)
    ahead = np.where(compared & (most >= tolerance), fitted.estimate - reach, -np.inf)
    nobody = (out(ahead) == alive).all(1)
    return reach, np.where(nobody[:, None, None], -np.inf, ahead)


def out(ahead: Array) -> Mask:
    """Which configurations are beaten by another: (race, configuration)."""
    return np.asarray((ahead > 0).any(1))


def all_level(estimate: Array, reach: Array, alive: Mask, tolerance: float) -> Mask:
    """In which races all differences between survivors are proven to be too small to matter."""
    compared = alive[:, :, None] & alive[:, None, :] & ~np.eye(alive.shape[1], dtype=bool)
    return np.asarray((~compared | (np.abs(estimate) + reach < tolerance)).all((1, 2)))


def _more(fitted: Fit, contest: Contest, survivors: Sequence[int]) -> int | None:
    """Further repetitions after which every survivor would be out or level, were the differences and noise as seen."""
    left = np.ix_(survivors, survivors)
    errors = fitted.error[0][left].copy()
    np.fill_diagonal(errors, 0.0)
    if contest.looks < 2 or not np.isfinite(errors).all():
        return max(1, FIRST_LOOK - contest.looks)
    lasting = np.zeros_like(errors) if fitted.lasting is None else np.minimum(fitted.lasting[0][left], errors)
    hidden = np.broadcast_to(fitted.hidden, fitted.error.shape)[0][left]
    seen = np.abs(fitted.estimate[0][left])
    best = int(fitted.estimate[0][left].sum(1).argmax())
    for more in range(1, MOST_MORE + 1):
        look = contest.looks + more
        if look < FIRST_LOOK:
            continue
        error = np.sqrt(lasting**2 + (errors**2 - lasting**2) * contest.looks / look)
        freedom = fitted.freedom[0][left] * (look - 1) / max(1, contest.looks - 1)
        reach = margin(freedom, look, float(len(survivors)), contest.size) * error
        reach += hidden * contest.looks / look
        level = seen + reach < contest.tolerance
        beaten = seen[best] > reach[best]
        near = np.flatnonzero(~beaten)
        if level[np.ix_(near, near)][~np.eye(len(near), dtype=bool)].all():
            return more
    return None
