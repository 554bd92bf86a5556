"""The area under the ROC curve, exactly: from the ranks of all scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def roc_auc(labels: NDArray[Any], scores: NDArray[np.float64]) -> float | None:
    """The share of pairs of a positive and a negative example that scores put in the right order; a tie is half a pair.

    None where only one of both occurs, or a score is not a number.
    """
    truth = np.asarray(labels, np.bool_)
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives or np.isnan(scores).any():
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Twice the mean rank of each distinct score: whole numbers, so that nothing is rounded before the division.
    ends = np.cumsum(counts)
    twice_rank = 2 * ends - counts + 1
    twice = int(twice_rank[place.ravel()][truth].sum())
    return (twice - positives * (positives + 1)) / (2 * positives * negatives)
