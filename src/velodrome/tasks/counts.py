"""Metrics as they travel: counts that add up exactly, never means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Counts:
    """How many examples were seen, how many of them were right, and the sum of their losses."""

    correct: int = 0
    total: int = 0
    loss_sum: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.correct + other.correct, self.total + other.total, self.loss_sum + other.loss_sum)

    @property
    def accuracy(self) -> float:
        return self.correct / self.total if self.total else float("nan")

    @property
    def loss(self) -> float:
        return self.loss_sum / self.total if self.total else float("nan")

    def vector(self) -> NDArray[np.float64]:
        """As three float64 numbers, exact up to 2**53 examples, for a sum over ranks."""
        return np.array([self.correct, self.total, self.loss_sum], dtype=np.float64)

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> Counts:
        return cls(round(float(vector[0])), round(float(vector[1])), float(vector[2]))

    def fields(self) -> dict[str, float]:
        return {"correct": self.correct, "total": self.total, "loss_sum": self.loss_sum}
