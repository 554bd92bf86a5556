"""Counts of a classification that was evaluated in parts: accuracy, confusion matrix, and which answers were right.

For engines whose learners count in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.tasks import correctness_bits
from velodrome.tasks.counts import Counts
from velodrome.worker.learner import Learner, Part

#: A confusion matrix of more classes is unreadable and large.
MAX_CONFUSION_CLASSES = 100
#: Sums a vector over the processes, in each of them.
Sum = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def count_classified(
    learner: Learner, part: Part, examples: Any, mine: NDArray[np.int64], predicted: NDArray[np.int64], loss: float,
    classes: int, total: Sum,
) -> Counts:
    """This process's counts of the examples `mine` of a part, whose classes it predicted with this summed loss. Sets
    `confusion` and, of the test set, `answers` of the learner, both summed over the processes."""
    labels = np.asarray(examples.labels[mine], np.int64)
    right = predicted == labels
    if part == "test":
        whole = np.zeros(len(examples), np.bool_)
        whole[mine] = right
        learner.answers = correctness_bits.from_vector(total(correctness_bits.to_vector(whole)), len(examples))
    if classes <= MAX_CONFUSION_CLASSES:
        pairs = np.bincount(labels * classes + predicted, minlength=classes**2).astype(np.float64)
        learner.confusion = total(pairs).round().astype(np.int64).reshape(classes, classes)
    return Counts(len(mine), loss, {"correct": int(right.sum())})
