"""What engines hand a task: a batch in their tensors, and counts of it.

Counts are metrics as they travel: sums that add up exactly over steps and ranks, never means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.tasks import correctness_bits

#: A confusion matrix of more classes is unreadable and large.
MAX_CONFUSION_CLASSES = 100

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Some examples: inputs and targets by name, tensors whose first axis counts the examples."""

    inputs: Mapping[str, Any]
    targets: Mapping[str, Any]

    @property
    def x(self) -> Any:
        """What the model takes: the only input, or all of them by name."""
        return next(iter(self.inputs.values())) if len(self.inputs) == 1 else dict(self.inputs)

    @property
    def y(self) -> Any:
        """The only target, or all of them by name."""
        return next(iter(self.targets.values())) if len(self.targets) == 1 else dict(self.targets)

    def __len__(self) -> int:
        return int(next(iter((self.targets or self.inputs).values())).shape[0])


@dataclass(frozen=True)
class Counts:
    """How many examples were counted, the sum of their losses, and the sums that are the task's own, by name."""

    total: int = 0
    loss_sum: float = 0.0
    own: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        names = self.own if len(self.own) >= len(other.own) else other.own
        own = {name: self.own.get(name, 0) + other.own.get(name, 0) for name in names}
        return Counts(self.total + other.total, self.loss_sum + other.loss_sum, own)

    def vector(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The task's own sums in the order of `names`, then total and loss: float64, exact up to 2**53."""
        own = [self.own.get(name, 0) for name in names]
        return np.array([*own, self.total, self.loss_sum], dtype=np.float64)

    @classmethod
    def of(cls, vector: NDArray[np.float64], names: Sequence[str]) -> Counts:
        """Counts from what `vector` returned, or from the sum of several."""
        *own, total, loss_sum = (float(value) for value in vector)
        return cls(round(total), loss_sum, {name: _plain(value) for name, value in zip(names, own, strict=True)})

    def fields(self, names: Sequence[str]) -> dict[str, float]:
        """As events carry them."""
        return {**{name: self.own.get(name, 0) for name in names}, "total": self.total, "loss_sum": self.loss_sum}


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value


class Evaluated(NamedTuple):
    """What a process counted in an evaluation of a part; `summed`, what all of them did."""

    counts: Counts
    #: Examples of each true class (row) by predicted class (column), flattened; None where it is not counted.
    confusion: Vector | None = None
    #: For every example of the part, whether it was classified correctly; None where no answer is right.
    answers: NDArray[np.bool_] | None = None
    #: For every example of the part, its scores, flattened, zero where another process has it; None where a task needs
    #: none.
    scores: Vector | None = None

    def summed(self, names: Sequence[str], total: Callable[[Vector], Vector]) -> Evaluated:
        """The sums over processes by one message; `total` returns the sum of the processes' vectors."""
        bits = None if self.answers is None else correctness_bits.to_vector(self.answers)
        optional = [np.zeros(0) if each is None else each for each in (self.confusion, self.scores, bits)]
        parts = [self.counts.vector(names), *optional]
        sums = np.split(total(np.concatenate(parts)), np.cumsum([len(each) for each in parts[:-1]]))
        return Evaluated(
            Counts.of(sums[0], names), None if self.confusion is None else sums[1],
            None if self.answers is None else correctness_bits.from_vector(sums[3], len(self.answers)),
            None if self.scores is None else sums[2],
        )
