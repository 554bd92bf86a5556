"""Which examples are trained on at which step by whom: a pure function of seed, epoch, batch and number of workers.

Synchronous training is exact because of this file: at every step the shares of all workers together are the batch
that one worker alone would see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def order_of_epoch(examples: int, seed: int, epoch: int) -> Indices:
    """The order in which an epoch (counted from 1) visits the training set."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(examples).astype(np.int64)


@dataclass(frozen=True)
class Share:
    """The examples of one worker in one epoch, step after step.

    Step `s` trains on ``indices[offsets[s]:offsets[s + 1]]`` — possibly none of them — out of a batch of
    ``batch[s]`` examples over all workers, by which summed gradients are divided.
    """

    indices: Indices
    offsets: Indices
    batch: Indices

    @property
    def steps(self) -> int:
        return len(self.batch)

    def of(self, step: int) -> Indices:
        return self.indices[self.offsets[step] : self.offsets[step + 1]]


@dataclass(frozen=True)
class Schedule:
    """All steps of one epoch, for every worker."""

    order: Indices
    batch_size: int
    workers: int = 1

    @property
    def steps(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def batch(self, step: int) -> Indices:
        """The whole batch of a step, over all workers."""
        return self.order[step * self.batch_size : (step + 1) * self.batch_size]

    def examples(self, first: int, last: int) -> int:
        """How many examples the steps `first` up to, not including, `last` hold together."""
        total = len(self.order)
        return min(last * self.batch_size, total) - min(first * self.batch_size, total)

    def share(self, rank: int) -> Share:
        """Every n-th example of each batch, beginning with the rank-th."""
        sizes = np.array([len(self.batch(step)) for step in range(self.steps)], dtype=np.int64)
        mine = [self.batch(step)[rank :: self.workers] for step in range(self.steps)]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in mine])]).astype(np.int64)
        indices = np.concatenate(mine) if mine else np.empty(0, dtype=np.int64)
        return Share(indices=indices, offsets=offsets, batch=sizes)


def share_of(examples: int, rank: int, workers: int) -> Indices:
    """The examples of a set that a worker evaluates: together all of them, each once."""
    return np.arange(rank, examples, workers, dtype=np.int64)
