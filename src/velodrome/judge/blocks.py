"""Compares configurations by blocks: the logarithm of a value is its configuration's plus its block's plus noise.

A block is a repetition of the race, in which every configuration ran once: whatever changed between repetitions falls
out of the differences. Batches of races are computed at once, so that `benchmarks/verdicts.py` simulates with this
code. `docs/reference/verdicts.md` explains the rule; the constants were chosen by that benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, fdtrc, polygamma, stdtrit

from velodrome.job.result import Result
from velodrome.judge.measures import CONFIDENCE, Ratio, t_quantile

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: The chance that a run of ordinary noise is as far off as a straggler, by the noise of all configurations: in
#: verdicts, and for the plain interval of a pair, where few runs would find none with less.
CHANCE, PLAIN_CHANCE = 1e-4, 3e-3
#: The same by the noise of its own configuration, which may be more than that of the others.
_OWN_CHANCE = 6e-4
#: The largest share of a configuration's runs that may be stragglers; with more it is just noisy.
MOST_STRAGGLERS = 0.4
#: Median absolute deviation to standard deviation, for normal noise.
_DEVIATION = 1.4826
#: Degrees of freedom of such a deviation, compared with those of a standard deviation of the same values.
_EFFICIENCY = 0.7


def straggling(values: Array, chance: float = CHANCE) -> Mask:
    """Which values are stragglers; `values` is (race, configuration, block), NaN where a run is missing."""
    present = ~np.isnan(values)
    rest = values
    for _ in range(3):  # median polish
        rest = rest - _median(rest, 2)
        rest = rest - _median(rest, 1)
    sizes = np.where(present, np.abs(rest), -1.0)
    runs = present.sum(2)
    freedom = np.maximum(runs.sum(1) - present.any(2).sum(1) - present.any(1).sum(1) + 1, 1)
    two = values.shape[1] == 2
    # Both runs of a block are equally far off where nobody else ran, so one of them tells all.
    ranked = -np.sort(-(sizes[:, 0] if two else sizes.reshape(len(values), -1)), axis=1)
    # The polish leaves about as many residuals at zero as it has fitted medians: they say nothing about the noise.
    races, last = np.arange(len(values)), ranked.shape[1] - 1
    low, high = np.minimum((freedom - 1) // 2, last), np.minimum(freedom // 2, last)
    middle = (ranked[races, low] + ranked[races, high]) / 2
    limit = (_deviations(freedom, chance) * middle)[:, None]
    if not two:
        own = _median(np.where(present, np.abs(rest), np.nan), 2)[:, :, 0]
        limit = np.maximum(limit, _deviations(runs - 1, _OWN_CHANCE) * own)
    far = present & (sizes > limit[:, :, None])
    return np.asarray(far & (far.sum(2) <= MOST_STRAGGLERS * runs)[:, :, None])


def _deviations(freedom: NDArray[np.int_], chance: float) -> Array:
    """How many median deviations ordinary noise exceeds with this chance, if they have so many degrees of freedom."""
    distinct, place = np.unique(freedom.ravel(), return_inverse=True)
    deviations: Array = -_DEVIATION * stdtrit(np.maximum(_EFFICIENCY * distinct, 0.5), chance / 2)
    return deviations[place].reshape(freedom.shape)


def _median(values: Array, axis: int) -> Array:
    """Medians without missing values; 0 where all are missing."""
    ranked = np.sort(values, axis=axis)
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, values.shape[axis] - 1)
    middle = (np.take_along_axis(ranked, low, axis) + np.take_along_axis(ranked, high, axis)) / 2
    return np.where(count > 0, middle, 0.0)


#: The seed of a repetition, and the how manieth run of its configuration with that seed it is. Blocks sort in the order
#: in which they ran.
Block = tuple[int, int]


def seed_of(result: Result) -> int:
    """The seed of a run; 0 where an older result has none."""
    return result.seed or (result.job.seed if result.job else 0)


def blocks_of(
    finished: Mapping[str, Sequence[Result]], failures: Mapping[str, Sequence[Result]]
) -> dict[str, tuple[Block, ...]]:
    """The blocks of the finished runs of every configuration, then those of its failures, in the order given.

    A failure belongs to the block in which it was run again, if it was. Where configurations have no seed in common,
    because a race gave each its own, the first runs of all are one block, the second ones another, and so on.
    """
    places = {key: [*_places(group), *_places(failures.get(key, ()))] for key, group in finished.items()}
    shared = set.intersection(*({seed for seed, _ in blocks} for blocks in places.values())) if places else set()
    if shared:
        return {key: tuple(blocks) for key, blocks in places.items()}
    ranks = {key: {block: (rank, 0) for rank, block in enumerate(sorted(set(blocks)))}
             for key, blocks in places.items()}
    return {key: tuple(ranks[key][block] for block in blocks) for key, blocks in places.items()}


def _places(results: Sequence[Result]) -> list[Block]:
    seeds = [seed_of(result) for result in results]
    return [(seed, seeds[:place].count(seed)) for place, seed in enumerate(seeds)]


#: The chance that anything a race claims is wrong, however many configurations it has and however often one looks.
ERROR_RATE = 0.05
#: The first repetition after which anything is claimed.
FIRST_LOOK = 3
#: Differences of logarithms below this cannot be measured by any clock: 0.1 %.
RESOLUTION = 0.001
#: Up to here every look has the same share of the error rate; later ones have less and less, without an end: falling
#: with the square of the look, or, with more than a few configurations, with its cube. Races that are hard to decide,
#: with noise half as large as the lead, end at about that look.
_EVEN_LOOKS = 14
#: The first looks of more than two configurations have less: there, noise of unequal size is hardest to see. Two need
#: none of this, because the noise of their difference is all that matters. Up to four leave more for the third
#: repetition, at which many races end; with more, the later looks need it to tell many rivals apart.
_FIRST_SHARES_OF_FEW = {3: 0.13, 4: 0.15, 5: 0.2, 6: 0.3, 7: 0.5, 8: 0.8}
_FIRST_SHARES_OF_MANY = {3: 0.004, 4: 0.008, 5: 0.015, 6: 0.05, 7: 0.12, 8: 0.35}
_FEW = 4
#: By how much looks and pairs err less often than their sum, because they depend on one another, by the number of
#: configurations that entered. With these, the worst situations of the benchmark, mostly those of unequal noise, have
#: 4 to 5 % false claims.
_TOGETHER = {2: 3.5, 3: 2.1, 4: 1.9, 8: 3.6, 16: 3.3}
#: A configuration whose noise exceeds that of the others, with this chance of seeming so only, is judged by itself.
_NOISY = 0.04
#: Standard errors by which the difference in noise between configurations is taken for larger than it seems.
_DOUBT = 0.5
#: Degrees of freedom that a noisy configuration takes over from the others.
_ALONE = 1.0


@dataclass(frozen=True)
class Fit:
    """Differences of logarithms between all pairs, for a batch of races: (race, configuration, configuration)."""

    estimate: Array
    #: Standard error; infinite where two configurations share fewer than two blocks.
    error: Array
    freedom: Array
    #: Which values count as stragglers: (race, configuration, block).
    stragglers: Mask
    #: The part of the standard error that more repetitions do not make smaller; None if there is none.
    lasting: Array | None = None
    #: How much worse the first of a pair may be for reasons that none of its runs shows.
    unseen: Array | None = None

    @property
    def hidden(self) -> Array | float:
        return 0.0 if self.unseen is None else self.unseen


def fit(logarithms: Array, *, robust: bool = True, plain: bool = False) -> Fit:
    """Compare the configurations of races; `logarithms` is (race, configuration, block), NaN where a run is missing.

    Without `robust` every value counts as it is: a run that failed is no straggler. `plain` is for an interval of 95 %:
    it takes values for stragglers that a verdict, which is to be wrong far less often, does not.
    """
    stragglers = np.zeros(logarithms.shape, bool)
    if robust:
        stragglers = straggling(logarithms, PLAIN_CHANCE if plain else CHANCE)
    present = ~np.isnan(logarithms) & ~stragglers
    there = present.astype(float)
    filled = np.where(present, logarithms, 0.0)
    across = there.swapaxes(1, 2)
    common = there @ across
    shared = np.maximum(common, 1)
    totals = filled @ across
    estimate = (totals - totals.swapaxes(1, 2)) / shared
    squares = filled**2 @ across
    scatter = squares + squares.swapaxes(1, 2) - 2 * filled @ filled.swapaxes(1, 2) - common * estimate**2
    # Without its extremes noise seems smaller than it is: by simulation, about as much as runs were left out.
    kept = 1 - stragglers.sum(2) / np.maximum((present | stragglers).sum(2), 1)
    own = np.maximum(scatter, 0) / np.maximum(common - 1, 1) / np.minimum(kept[:, :, None], kept[:, None, :])
    degrees = common - 1
    if logarithms.shape[1] > 2:
        own, degrees = _steadied(own, degrees, filled, present)
    error = np.where(common < 2, np.inf, np.sqrt(np.maximum(own, RESOLUTION**2) / shared))
    return Fit(estimate, error, np.maximum(degrees, 1), stragglers)


def _steadied(own: Array, degrees: Array, filled: Array, present: Mask) -> tuple[Array, Array]:
    """The variance of each pair's difference, steadied by that of all pairs as far as their noise is alike.

    Few blocks tell little about the noise of one pair. The noise of all pairs counts as some more degrees of freedom:
    many if the configurations scatter alike, few if they do not, next to none for one that scatters more than the
    others.
    """
    runs, there = present.sum(2), present.astype(float)
    rest = _residuals(filled, there)
    configurations = np.maximum(present.any(2).sum(1), 2)
    freedom = np.maximum(there.sum((1, 2)) - configurations - present.any(1).sum(1) + 1, 1)
    pooled = (rest**2).sum((1, 2)) / freedom
    mine = np.maximum((runs - 1) * (1 - 1 / configurations[:, None]), 0.5)
    sums = (rest**2).sum(2)
    spread = np.maximum(sums / mine, 1e-300)
    # How much more the configurations' variances differ than chance explains, in the way of empirical Bayes.
    chance = polygamma(1, mine / 2)
    logs = np.where(runs >= 2, np.log(spread) - digamma(mine / 2) + np.log(mine / 2), np.nan)
    with np.errstate(all="ignore"):
        count = np.maximum((runs >= 2).sum(1), 2)
        mean = np.nansum(logs, axis=1) / count
        excess = np.nansum((logs - mean[:, None]) ** 2, axis=1) / (count - 1) - chance.mean(1)
    doubt = chance.mean(1) * np.sqrt(2 / np.maximum(configurations - 1, 1))
    borrowed = np.broadcast_to(_degrees_of(excess + _DOUBT * doubt)[:, None, None], own.shape)
    others = np.maximum(freedom[:, None] - mine, 0.5)
    ratio = spread / np.maximum((sums.sum(1, keepdims=True) - sums) / others, 1e-300)
    noisy = fdtrc(mine, others, ratio) < _NOISY
    borrowed = np.where(noisy[:, :, None] | noisy[:, None, :], _ALONE, borrowed)
    borrowed = np.minimum(borrowed, np.maximum(freedom[:, None, None] - degrees, 0))
    total = np.maximum(borrowed + degrees, 1)
    return (borrowed * 2 * pooled[:, None, None] + degrees * own) / total, total


_GRID = np.exp(np.linspace(np.log(2.0), np.log(400.0), 300))
_TRIGAMMA = polygamma(1, _GRID / 2)


def _degrees_of(variance: Array) -> Array:
    """The degrees of freedom of a scaled chi-square whose logarithm has this variance, between 2 and 400."""
    return np.interp(-np.clip(variance, _TRIGAMMA[-1], _TRIGAMMA[0]), -_TRIGAMMA, _GRID)


def _residuals(filled: Array, there: Array) -> Array:
    """What configurations and blocks do not explain, by least squares; alternating means converge to it where runs are
    missing."""
    rest = _without_means(filled * there, there, 1)
    gaps = ~there.all((1, 2))
    if gaps.any():
        rest[gaps] = _without_means(rest[gaps], there[gaps], 11)
    return rest


def _without_means(rest: Array, there: Array, rounds: int) -> Array:
    runs, members = np.maximum(there.sum(2, keepdims=True), 1), np.maximum(there.sum(1, keepdims=True), 1)
    for _ in range(rounds):
        rest = (rest - rest.sum(2, keepdims=True) / runs) * there
        rest = (rest - rest.sum(1, keepdims=True) / members) * there
    return rest


def share_of_look(look: int, entered: int = 2) -> float:
    """The share of the error rate for the look after so many repetitions; the shares of all looks add up to one."""
    if look < FIRST_LOOK:
        return 0.0
    few = entered <= _FEW
    first: Mapping[int, float] = {} if entered <= 2 else _FIRST_SHARES_OF_FEW if few else _FIRST_SHARES_OF_MANY
    even = sum(first.get(number, 1.0) for number in range(FIRST_LOOK, _EVEN_LOOKS + 1))
    next_one = _EVEN_LOOKS + 1
    # Both falls begin with 1 and have sums that are known: (n + 1) and (n + 1) / 2 for n even looks.
    whole = even + (next_one if few else next_one / 2)
    if look <= _EVEN_LOOKS:
        return first.get(look, 1.0) / whole
    fall = next_one * _EVEN_LOOKS / (look * (look - 1))
    return (fall if few else fall * (_EVEN_LOOKS - 1) / (look - 2)) / whole


def error_of_look(look: int) -> float:
    """What one question asked after every repetition may use of the error rate at this one."""
    return ERROR_RATE * _TOGETHER[2] * share_of_look(max(look, FIRST_LOOK))


def margin(freedom: Array, look: int, rivals: Array | float, entered: int) -> Array:
    """How many standard errors a difference must exceed to be claimed at this look, so many of those that entered being
    left as rivals."""
    pairs = np.maximum(rivals * (rivals - 1) / 2, 1)
    together = np.interp(entered, list(_TOGETHER), list(_TOGETHER.values()))
    level = ERROR_RATE * together * share_of_look(look, entered) / pairs
    if look < FIRST_LOOK:
        return np.full_like(freedom, np.inf)
    # Quantiles take long, and most pairs of a race have the same.
    distinct, place = np.unique((freedom + 1j * level).ravel(), return_inverse=True)
    quantiles: Array = -stdtrit(distinct.real, distinct.imag / 2)[place].reshape(freedom.shape)
    return quantiles


#: Levels of intervals with so few degrees of freedom, one less than repetitions. By simulation.
_CONFIDENCE_OF_FEW = {2: 0.94, 3: 0.945, 4: 0.945}


def logarithms(values: Sequence[Mapping[Block, float]]) -> Array:
    """A table of (configuration, block), in the order of both; NaN where a value is missing or not positive."""
    blocks = sorted({block for row in values for block in row})
    table = np.array([[row.get(block, math.nan) for block in blocks] for row in values], dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(table)
    return np.where(np.isfinite(logs), logs, math.nan)


def nominal(freedom: float) -> float:
    """The level of Student's t of a plain interval that is to contain the truth in 95 of 100 races.

    Up to five repetitions cannot tell a straggler from noise; where there are some, intervals are wider than need be.
    The level stands in the middle: a little less than 95 % without stragglers, a little more with 10 % of them.
    """
    return _CONFIDENCE_OF_FEW.get(round(freedom), CONFIDENCE)


def paired_ratios(values: Mapping[str, Mapping[Block, float]]) -> Callable[[str, str], Ratio | None]:
    """A function from two names to the ratio of the first over the second; None if they share no two repetitions."""
    places = {name: place for place, name in enumerate(values)}
    logs = logarithms(list(values.values()))

    def over(first: str, second: str) -> Ratio | None:
        # By the runs of these two only: so the interval is right whatever the noise of the others is.
        fitted = fit(logs[None, [places[first], places[second]]], plain=True)
        estimate, error, freedom = (float(of[0, 0, 1]) for of in (fitted.estimate, fitted.error, fitted.freedom))
        if not math.isfinite(error):
            return None
        # Few and very different runs give intervals beyond the range of floats: e to the 100th is as inconclusive.
        reach = min(100.0, error * t_quantile((1 + nominal(freedom)) / 2, freedom))
        return Ratio(math.exp(estimate), math.exp(estimate - reach), math.exp(estimate + reach))

    return over
