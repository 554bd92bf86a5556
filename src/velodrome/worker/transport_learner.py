"""What learners have in common whose processes sum counts over a transport: an engine adds its model and its steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from velodrome.tasks.counts import Counts
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.gather import gather
from velodrome.worker.learner import Learner


class TransportLearner(Learner):
    """A learner that exists in every worker; whatever is no gradient is summed by the transport, in float64."""

    def __init__(self, context: Context, transport: Transport) -> None:
        self._context, self._transport = context, transport

    def sum_vector(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace a vector by its sum over the processes, and return it."""
        with self._context.waiting():
            self._transport.all_reduce(vector)
        return vector

    def sum_counts(self, counts: Counts) -> Counts:
        """The sum of the processes' counts."""
        names = self._context.task.counted
        return Counts.of(self.sum_vector(counts.vector(names)), names)

    def total(self, counts: Counts) -> Counts:
        return self.sum_counts(counts)

    def gather(self, data: bytes) -> list[bytes]:
        return gather(data, self._transport.rank, self._transport.size, self.sum_vector)

    def average_statistics(self) -> None:
        """Nothing: for models without moving statistics."""

    def close(self) -> None:
        self._transport.close()
