"""Regression: numbers that are predicted, by the mean squared error. No framework here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from velodrome.job.job import Job
from velodrome.tasks.base import LOSS, Metric, mean_loss
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.targets import as_numbers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExampleSet


#: Rows that are read at a time where they are computed.
_ROWS = 1024


class Regression(ExampleTask):
    """Counts errors of the predicted numbers; those of an example with several are averaged over them.

    R² compares the squared errors with those of the constant prediction that is best for the part: the mean of its
    targets, number by number. `deviations` are the squares of that comparison, counted around that mean, because
    the difference of two large sums would lose them. Of several numbers per example, R² weighs each by its variance.
    """

    name = "regression"
    side = "arrays"
    metrics = (
        Metric("mae", "less", ".4g", margin=0.05, relative_margin=True), Metric("rmse", "less", ".4g"),
        Metric("r2", "more", ".4f"), LOSS,
    )
    counted = ("absolute_errors", "squared_errors", "deviations")

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        absolute, squared, deviations = (_finite(counts[name]) for name in self.counted)
        total = counts["total"]
        return {
            "mae": None if absolute is None else absolute / total,
            "rmse": None if squared is None else math.sqrt(squared / total),
            "r2": None if squared is None or not deviations else 1 - squared / deviations,
            "loss": mean_loss(counts),
        }

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return as_numbers(job, data.as_arrays())

    def outputs(self, data: ExampleSet) -> int:
        return math.prod(data.targets[0].shape)

    def centre(self, data: ExampleSet, part: str) -> NDArray[np.float64]:
        """What `deviations` of a part are counted from: the mean of its targets, of the shape of one example's.

        Not a number for training rows that are computed one by one: their R² is not known.
        """
        import numpy as np

        found = getattr(data, part)
        if found.targets:
            (values,) = found.targets.values()
            return np.zeros(values.shape[1:]) if not len(values) else np.mean(values, axis=0, dtype=np.float64)
        shape = found.target_fields[0].shape
        if part == "train":  # rows that are computed: reading all of them would take as long as an epoch
            return np.full(shape, np.nan)
        total = np.zeros(shape)
        for first in range(0, len(found), _ROWS):
            _, targets = found.gather(np.arange(first, min(first + _ROWS, len(found)), dtype=np.int64))
            total += sum(values.sum(axis=0, dtype=np.float64) for values in targets.values())
        return total / max(1, len(found))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
