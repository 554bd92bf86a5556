"""Which runs of a race are stragglers: far from what their configuration and their block lead to expect.

By robust residuals of all runs, in batches of races. `judge/blocks.py` compares without them. The constants were
chosen by `benchmarks/verdicts.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

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
    found: Array = -_DEVIATION * stdtrit(np.maximum(_EFFICIENCY * distinct, 0.5), chance / 2)
    return found[place].reshape(freedom.shape)


def _median(values: Array, axis: int) -> Array:
    """Medians without missing values; 0 where all are missing."""
    ranked = np.sort(values, axis=axis)
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, values.shape[axis] - 1)
    middle = (np.take_along_axis(ranked, low, axis) + np.take_along_axis(ranked, high, axis)) / 2
    return np.where(count > 0, middle, 0.0)
