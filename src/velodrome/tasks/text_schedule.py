"""How a text is read in training: `batch` rows side by side, `unroll` words further at every step.

A text of n words is cut into `batch` rows of equal length that are read side by side; what does not fill a row is left
out, as in Zaremba et al. (2014). A worker reads every n-th row, so that the workers together read, at every step, what
one worker alone would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]

#: Rows in which validation and test texts are read.
EVALUATION_ROWS = 20


@dataclass(frozen=True)
class TextSchedule:
    """All steps of one epoch over a text."""

    words: int
    batch: int
    unroll: int
    workers: int = 1
    #: How many times `batch` rows the text is cut into. A step reads the rows of one group; groups advance apart.
    groups: int = 1
    #: Into how many parts a worker divides its rows, to add up the gradients of a step one after the other.
    parts: int = 1

    def in_parts(self, parts: int) -> TextSchedule:
        """The same steps, each of them in so many parts."""
        return replace(self, parts=parts)

    @property
    def width(self) -> int:
        """Words of a row that are predicted in an epoch."""
        return (self.words // (self.batch * self.groups) - 1) // self.unroll * self.unroll

    @property
    def steps(self) -> int:
        return self.width // self.unroll * self.groups

    def examples(self, first: int, last: int) -> int:
        """Words that the steps `first` up to, not including, `last` predict, over all workers."""
        return (min(last, self.steps) - min(first, self.steps)) * self.unroll * self.batch

    def rows(self, text: Words, rank: int) -> Words:
        """The rows of one worker, or of one group, each one word longer than `width`.

        Step `s` reads `unroll` columns from ``s * unroll`` on and predicts, for each, the word after it.
        """
        count = self.batch * self.groups
        length = self.words // count
        rows = text[: length * count].reshape(count, length)
        return np.ascontiguousarray(rows[rank :: self.workers * self.groups, : self.width + 1])


@dataclass(frozen=True)
class EvaluationRows:
    """A whole text in rows, for evaluation: every word but the first is predicted once.

    `inputs`, `targets` and `real` are (rows, length); where `real` is 0, a row has ended.
    """

    inputs: Words
    targets: Words
    real: NDArray[np.float32]

    def with_a_row(self) -> EvaluationRows:
        """The same, or one row in which nothing is predicted if there is none: for a worker that must compute."""
        if len(self.inputs):
            return self
        of_words = np.zeros((1, self.inputs.shape[1]), np.int32)
        return EvaluationRows(of_words, of_words, np.zeros(of_words.shape, np.float32))


def evaluation_rows(text: Words, rank: int = 0, workers: int = 1, rows: int = EVALUATION_ROWS) -> EvaluationRows:
    """The rows of a text that one worker evaluates: over all workers, each row once."""
    predicted = len(text) - 1
    length = -(-predicted // rows)
    inputs = np.zeros((rows, length), dtype=np.int32)
    targets = np.zeros((rows, length), dtype=np.int32)
    real = np.zeros((rows, length), dtype=np.float32)
    for row in range(rows):
        begin, end = min(row * length, predicted), min((row + 1) * length, predicted)
        inputs[row, : end - begin] = text[begin:end]
        targets[row, : end - begin] = text[begin + 1 : end + 1]
        real[row, : end - begin] = 1.0
    mine = slice(rank, None, workers)
    return EvaluationRows(inputs[mine], targets[mine], real[mine])
