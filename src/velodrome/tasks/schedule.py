"""Which examples are trained on at which step by whom: a pure function of seed, epoch, sharding and number of workers.

Synchronous training is exact because of this file: with `data` sharding the shares of all workers are together, at
every step, the batch that one worker alone would see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def order_of_epoch(examples: int, seed: int, epoch: int, *more: int) -> Indices:
    """The order in which an epoch (counted from 1) visits so many examples."""
    return np.random.Generator(np.random.PCG64([seed, epoch, *more])).permutation(examples).astype(np.int64)


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
    """All steps of one epoch: each worker goes through a stream of its own, so many examples a step."""

    streams: tuple[Indices, ...]
    sizes: tuple[int, ...]

    @property
    def steps(self) -> int:
        """As many as the longest stream needs; a worker whose stream ends sooner has no examples in the last steps."""
        return max(-(-len(stream) // size) for stream, size in zip(self.streams, self.sizes, strict=True))

    def _taken(self, steps: NDArray[np.int64]) -> Indices:
        """How many examples all workers have seen after so many steps."""
        counts = [np.minimum(steps * size, len(stream)) for stream, size in zip(self.streams, self.sizes, strict=True)]
        total: Indices = np.sum(counts, axis=0)
        return total

    def examples(self, first: int, last: int) -> int:
        """How many examples the steps `first` up to, not including, `last` hold together."""
        begin, end = self._taken(np.array([first, last]))
        return int(end - begin)

    def share(self, rank: int) -> Share:
        stream, ends = self.streams[rank], np.arange(self.steps + 1, dtype=np.int64)
        offsets = np.minimum(ends * self.sizes[rank], len(stream))
        return Share(indices=stream, offsets=offsets, batch=np.diff(self._taken(ends)))

    def unequal(self) -> int:
        """In how many steps of the epoch some worker has no example although others do."""
        shortest = min(-(-len(stream) // size) for stream, size in zip(self.streams, self.sizes, strict=True))
        return self.steps - shortest


def _sizes(batch: int, workers: int) -> tuple[int, ...]:
    """A batch dealt out to workers in turns."""
    return tuple(len(range(rank, batch, workers)) for rank in range(workers))


def by_data(examples: int, batch: int, workers: int, seed: int, epoch: int) -> Schedule:
    """Every n-th example of each batch of the one order: together, at every step, what one worker alone would see."""
    order = order_of_epoch(examples, seed, epoch)
    batches = [order[first : first + batch] for first in range(0, examples, batch)]
    streams = tuple(np.concatenate([part[rank::workers] for part in batches]) for rank in range(workers))
    return Schedule(streams, _sizes(batch, workers))


def files_of(rank: int, files: int, workers: int) -> range:
    """The files of a worker under `file` sharding: every n-th, as TensorFlow deals them out."""
    return range(rank, files, workers)


def _file_of_each(files: Sequence[int]) -> Indices:
    """Which file every example lies in, where the files take turns, one example each, as long as they last."""
    numbers = np.repeat(np.arange(len(files)), files)
    turns = np.concatenate([np.arange(count) for count in files])
    dealt: Indices = numbers[np.lexsort((numbers, turns))]
    return dealt


def by_file(
    files: Sequence[int], batch: int, workers: int, seed: int, epoch: int, *, own: bool = False
) -> Schedule:
    """Whole files to each worker, given the examples of every file; in the data set's order they take turns.

    With `own`, a stream counts within its worker's own files, for a worker that holds no others.
    """
    file = _file_of_each(files)
    streams = []
    for rank in range(workers):
        mine = np.flatnonzero(np.isin(file, files_of(rank, len(files), workers))).astype(np.int64)
        order = order_of_epoch(len(mine), seed, epoch, workers, rank)
        streams.append(order if own else mine[order])
    return Schedule(tuple(streams), _sizes(batch, workers))


def off(examples: int, batch: int, workers: int, seed: int, epoch: int) -> Schedule:
    """Everything to everybody, each in an order of its own: an epoch sees the set once for every worker."""
    streams = tuple(order_of_epoch(examples, seed, epoch, workers, rank) for rank in range(workers))
    return Schedule(streams, _sizes(batch, workers))


def share_of(examples: int, rank: int, workers: int) -> Indices:
    """The examples of a set that a worker evaluates: together all of them, each once."""
    return np.arange(rank, examples, workers, dtype=np.int64)
