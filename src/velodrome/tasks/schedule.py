"""Which examples each worker trains on at each step: a pure function of seed, epoch, sharding and number of workers.

Synchronous training is exact because of this module: with `data` sharding, the workers' partitions of a step together
are the batch that one worker alone would train on.

A text of n words is cut into `batch` rows of equal length that are read side by side, `unroll` words further at every
step; what does not fill a row is left out, as in Zaremba et al. (2014). A worker reads every n-th row, so that the
workers together read, at every step, what one worker alone would.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import ExamplePart, Named

Indices = NDArray[np.int64]


def order_of_epoch(examples: int, seed: int, epoch: int, *more: int) -> Indices:
    """The order in which an epoch (counted from 1) visits so many examples."""
    return np.random.Generator(np.random.PCG64([seed, epoch, *more])).permutation(examples).astype(np.int64)


@dataclass(frozen=True)
class Partition:
    """The examples of one worker in one epoch, step by step.

    Step `s` trains on ``indices[offsets[s]:offsets[s + 1]]``, possibly none of them, out of a batch of ``batch[s]``
    examples over all workers, by which summed gradients are divided.
    """

    indices: Indices
    offsets: Indices
    batch: Indices

    @property
    def steps(self) -> int:
        return len(self.batch)

    def step(self, number: int) -> Indices:
        """Indices of the examples of one step."""
        return self.indices[self.offsets[number] : self.offsets[number + 1]]

    def in_parts(self, parts: int) -> Partition:
        """The same with every step in so many steps of its own, as equal as possible: the last of them has an example
        unless none has."""
        begin, size = self.offsets[:-1, None], np.diff(self.offsets)[:, None]
        ends = begin + size * np.arange(1, parts + 1) // parts
        return Partition(self.indices, np.append(self.offsets[:1], ends.ravel()), np.repeat(self.batch, parts))


@dataclass(frozen=True)
class Schedule:
    """All steps of one epoch: the indices of each worker, and how many of them it trains on at a step."""

    indices: tuple[Indices, ...]
    batch_sizes: tuple[int, ...]
    #: Into how many parts a worker divides its examples of a step, to add up their gradients one after the other.
    parts: int = 1

    def _steps_of_workers(self) -> list[int]:
        return [-(-len(mine) // size) for mine, size in zip(self.indices, self.batch_sizes, strict=True)]

    @property
    def steps(self) -> int:
        """As many as the worker with the most examples needs; one with fewer has none in the last steps."""
        return max(self._steps_of_workers())

    def _examples_after(self, steps: NDArray[np.int64]) -> Indices:
        """How many examples all workers have trained on after so many steps."""
        workers = zip(self.indices, self.batch_sizes, strict=True)
        counts = [np.minimum(steps * size, len(mine)) for mine, size in workers]
        total: Indices = np.sum(counts, axis=0)
        return total

    def examples(self, first: int, last: int) -> int:
        """How many examples the steps `first` up to, not including, `last` hold over all workers."""
        begin, end = self._examples_after(np.array([first, last]))
        return int(end - begin)

    def partition(self, rank: int) -> Partition:
        """What one worker trains on."""
        mine, ends = self.indices[rank], np.arange(self.steps + 1, dtype=np.int64)
        offsets = np.minimum(ends * self.batch_sizes[rank], len(mine))
        whole = Partition(indices=mine, offsets=offsets, batch=np.diff(self._examples_after(ends)))
        return whole if self.parts == 1 else whole.in_parts(self.parts)

    def in_parts(self, parts: int) -> Schedule:
        """The same steps, each of them in so many parts: a partition then has a step for each part."""
        return self if parts == 1 else replace(self, parts=parts)

    def sizes(self, steps: int | None = None) -> list[int]:
        """How many examples a worker has in a step: every number that occurs in the first `steps`, largest first."""
        last = min(self.steps, steps or self.steps) * self.parts
        counts = [np.diff(self.partition(rank).offsets[: last + 1]) for rank in range(len(self.indices))]
        distinct: list[int] = np.unique(np.concatenate(counts))[::-1].tolist()
        return distinct

    def uneven_steps(self) -> int:
        """In how many steps of the epoch some worker has no example although others do."""
        steps = self._steps_of_workers()
        return max(steps) - min(steps)


def per_worker_sizes(batch: int, workers: int) -> tuple[int, ...]:
    """The batch sizes of the workers, which differ by at most one."""
    return tuple(len(range(rank, batch, workers)) for rank in range(workers))


def by_data(examples: int, batch: int, workers: int, seed: int, epoch: int) -> Schedule:
    """Every n-th example of each batch of one order: together, at every step, the batch of one worker alone."""
    return _in_turn(order_of_epoch(examples, seed, epoch), batch, workers)


def in_order(examples: int, batch: int, workers: int) -> Schedule:
    """As `by_data`, in the order of the data: for what can only be read from front to back."""
    return _in_turn(np.arange(examples, dtype=np.int64), batch, workers)


def _in_turn(order: Indices, batch: int, workers: int) -> Schedule:
    """Every n-th example of each batch of an order."""
    batches = [order[first : first + batch] for first in range(0, len(order), batch)]
    indices = tuple(np.concatenate([part[rank::workers] for part in batches]) for rank in range(workers))
    return Schedule(indices, per_worker_sizes(batch, workers))


def files_of(rank: int, files: int, workers: int) -> range:
    """The files of a worker under `file` sharding: every n-th, as TensorFlow assigns them."""
    return range(rank, files, workers)


def _file_of_each(files: Sequence[int]) -> Indices:
    """The file of every example, where examples are interleaved: one of each file in turn, as long as they last."""
    numbers = np.repeat(np.arange(len(files)), files)
    turns = np.concatenate([np.arange(count) for count in files])
    interleaved: Indices = numbers[np.lexsort((numbers, turns))]
    return interleaved


def by_file(
    files: Sequence[int], batch: int, workers: int, seed: int, epoch: int, *, own: bool = False
) -> Schedule:
    """Whole files to each worker, given the number of examples in every file.

    With `own`, indices count within the worker's own files, for a worker that holds no others.
    """
    file = _file_of_each(files)
    indices = []
    for rank in range(workers):
        mine = np.flatnonzero(np.isin(file, files_of(rank, len(files), workers))).astype(np.int64)
        order = order_of_epoch(len(mine), seed, epoch, workers, rank)
        indices.append(order if own else mine[order])
    return Schedule(tuple(indices), per_worker_sizes(batch, workers))


def off(examples: int, batch: int, workers: int, seed: int, epoch: int) -> Schedule:
    """The whole set to every worker, each in its own order: an epoch visits the set once per worker."""
    indices = tuple(order_of_epoch(examples, seed, epoch, workers, rank) for rank in range(workers))
    return Schedule(indices, per_worker_sizes(batch, workers))


def one_queue(schedule: Schedule, batch: int) -> Schedule:
    """The batches of all workers as one queue, for a chief that gives the next one to whichever worker is free."""
    workers = [schedule.partition(rank) for rank in range(len(schedule.indices))]
    batches = [worker.step(step) for step in range(schedule.steps) for worker in workers]
    # A worker's remainder comes last: earlier, it would shift all batches after it across workers.
    queue = np.concatenate(sorted(batches, key=lambda indices: len(indices) < batch))
    return Schedule((queue,), (batch,))


def evaluation_indices(examples: int, rank: int, workers: int) -> Indices:
    """The examples of a set that a worker evaluates: over all workers, each example once."""
    return np.arange(rank, examples, workers, dtype=np.int64)


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
    #: How many workers read the whole text, each at its own pace, instead of a group each.
    copies: int = 1
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
    def readers(self) -> int:
        """How many advance apart: groups, or workers that read the whole text."""
        return self.groups * self.copies

    @property
    def steps(self) -> int:
        return self.width // self.unroll * self.readers

    def examples(self, first: int, last: int) -> int:
        """Words that the steps `first` up to, not including, `last` predict, over all workers."""
        return (min(last, self.steps) - min(first, self.steps)) * self.unroll * self.batch

    def rows(self, text: Words, rank: int) -> Words:
        """The rows of one worker, or of one group, each one word longer than `width`.

        Step `s` reads `unroll` columns from ``s * unroll`` on and predicts, for each, the word after it.
        """
        count, stride = self.batch * self.groups, self.workers * self.groups
        length = self.words // count
        rows = text[: length * count].reshape(count, length)
        return np.ascontiguousarray(rows[rank % stride :: stride, : self.width + 1])


@dataclass(frozen=True)
class EvaluationRows:
    """A whole text in rows, for evaluation: every word but the first is predicted once.

    `inputs`, `targets` and `real` are (rows, length); where `real` is 0, a row has ended.
    """

    inputs: Words
    targets: Words
    real: NDArray[np.float32]

    def with_a_row(self) -> EvaluationRows:
        """These rows, or one row in which nothing is predicted if there are none: for a worker that must compute."""
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


#: Bytes of rows that are read at a time.
WINDOW_BYTES = 8 << 20


class Prefetch:
    """One part, read step by step: a thread reads the next few steps while the ones before are trained on."""

    def __init__(self, part: ExamplePart) -> None:
        self._gather = part.reader()
        self._bytes = max(1, sum(column.bytes for column in (*part.input_fields, *part.target_fields)))
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="examples")

    def begin(self, indices: Indices, offsets: Indices, epoch: int = 0) -> None:
        """Use this order of examples, with the offsets of its steps; `epoch` is 0 in an evaluation."""
        self._order, self._epoch, self._window = indices, epoch, (0, 0)
        longest = int(np.diff(offsets).max(initial=1))
        steps = max(1, WINDOW_BYTES // max(1, longest * self._bytes))
        # Windows end where steps do.
        self._ends = np.unique(np.append(offsets[::steps], offsets[-1:])).tolist()
        self._number = 0
        self._next = self._read(0)

    def _read(self, number: int) -> Future[tuple[Named, Named]] | None:
        if number + 1 >= len(self._ends):
            return None
        return self._reader.submit(self._gather, self._order[self._ends[number] : self._ends[number + 1]], self._epoch)

    def rows(self, low: int, high: int) -> tuple[Named, Named]:
        """Inputs and targets from position `low` of the order up to, not including, `high`; one step after another."""
        while low >= self._window[1]:
            assert self._next is not None, "steps must be requested in order"
            self._held = self._next.result()
            self._window = self._ends[self._number], self._ends[self._number + 1]
            self._number += 1
            self._next = self._read(self._number)
        first = self._window[0]
        inputs, targets = (_cut(arrays, low - first, high - first) for arrays in self._held)
        return inputs, targets


def _cut(arrays: Named, low: int, high: int) -> dict[str, NDArray[Any]]:
    return {name: array[low:high] for name, array in arrays.items()}
