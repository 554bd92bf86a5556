"""What learners share that sum counts over the processes by a transport: an engine adds its model and its steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.tasks import correctness_bits
from velodrome.tasks.counts import Counts
from velodrome.transport.base import Transport
from velodrome.transport.mpi import MpiTransport
from velodrome.transport.rendezvous import Ranks
from velodrome.worker.context import Context
from velodrome.worker.learner import Learner, Part

#: A confusion matrix of more classes is unreadable and large.
MAX_CONFUSION_CLASSES = 100


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

    def count_classified(
        self, part: Part, examples: Any, mine: NDArray[np.int64], predicted: NDArray[np.int64], loss: float,
        classes: int,
    ) -> Counts:
        """Count, over all processes, an evaluation of a part whose examples `mine` this process classified as
        `predicted`, with this summed loss. Sets `confusion` and, for the test set, `answers`."""
        labels = np.asarray(examples.labels[mine], np.int64)
        right = predicted == labels
        if part == "test":
            whole = np.zeros(len(examples), np.bool_)
            whole[mine] = right
            right_of_all = self.sum_vector(correctness_bits.to_vector(whole))
            self.answers = correctness_bits.from_vector(right_of_all, len(examples))
        if classes <= MAX_CONFUSION_CLASSES:
            pairs = np.bincount(labels * classes + predicted, minlength=classes**2).astype(np.float64)
            self.confusion = self.sum_vector(pairs).round().astype(np.int64).reshape(classes, classes)
        return self.sum_counts(Counts(len(mine), loss, {"correct": int(right.sum())}))

    def average_statistics(self) -> None:
        """Nothing: for models without moving statistics."""

    def close(self) -> None:
        self._transport.close()


Vector = NDArray[np.float64]


def gather(data: bytes, rank: int, size: int, total: Callable[[Vector], Vector]) -> list[bytes]:
    """The data of all processes, in each of them; `total` returns the sum of the processes' vectors."""
    lengths = np.zeros(size)
    lengths[rank] = len(data)
    lengths = total(lengths).round().astype(np.int64)
    table = np.zeros((size, int(lengths.max())))
    table[rank, : len(data)] = np.frombuffer(data, np.uint8)
    numbers = total(table.ravel()).round().astype(np.uint8).reshape(table.shape)
    return [row[:length].tobytes() for row, length in zip(numbers, lengths, strict=True)]


def connect_mpi(context: Context) -> MpiTransport:
    """Join the job's MPI ranks; when a peer is lost, report it and end the process."""

    def on_lost(message: str) -> None:
        try:
            context.events.emit("error", cause="peer", message=message, traceback=None)
        finally:  # who reads it may be gone, too
            os._exit(1)

    return MpiTransport(Ranks.of(context.world), context.job.start_timeout, on_lost)
