"""What engines hand a task: a batch in their tensors, and counts of it.

Counts are metrics as they travel: sums that add up exactly over steps and ranks, never means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
