"""Where replicas get their batches from: a data set in memory, one larger than memory, or a text.

A feed yields windows: some steps, and for every replica the tensors from which the graph takes the batch of each step.
A step without examples holds one example that counts nothing, because TensorFlow's convolution gradient aborts the
process on an empty batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from velodrome.catalog.models import UNROLL
from velodrome.data.examples import ExamplePart, Read
from velodrome.engines.tensorflow.flat import Batch
from velodrome.tasks.base import Task
from velodrome.tasks.schedule import Indices, Partition, Schedule, TextSchedule, Words, evaluation_indices
from velodrome.tasks.schedule import evaluation_rows as rows_of_text
from velodrome.tasks.supervised import Regression
from velodrome.training.context import Context
from velodrome.training.learner import Part


class Examples(NamedTuple):
    """Inputs and targets by name. Bytes stay bytes, so that gathering a batch moves little."""

    inputs: Any
    targets: Any


class Source:
    """A part that a task loaded, as TensorFlow's side reads it."""

    def __init__(self, part: ExamplePart) -> None:
        self._part = part
        #: The whole arrays; None where rows are computed when they are asked for.
        self.arrays = None if part.computed else Examples(dict(part.inputs), dict(part.targets))
        self._read: Read | None = None
        self.spec = Examples(*(
            {field.name: tf.TensorSpec([None, *field.shape], tf.as_dtype(field.dtype)) for field in fields}
            for fields in (part.input_fields, part.target_fields)
        ))
        #: Bytes of the inputs of one example.
        self.input_bytes = sum(field.bytes for field in part.input_fields)

    def __len__(self) -> int:
        return len(self._part)

    @property
    def in_memory(self) -> bool:
        """Whether all of it may become tensors; mapped files may be larger than memory."""
        return self._part.in_memory

    @property
    def bytes(self) -> int:
        return len(self) * (self.input_bytes + sum(field.bytes for field in self._part.target_fields))

    def tensors(self) -> Examples:
        """All of it."""
        return _tensors(self.arrays)

    def read(self, indices: Indices, epoch: int = 0) -> Examples:
        """Some examples, from memory or from disk; `epoch` is 0 in an evaluation."""
        self._read = self._read or self._part.reader()
        return _tensors(Examples(*map(dict, self._read(indices, epoch))))


def _tensors(arrays: Any) -> Examples:
    tensors: Examples = tf.nest.map_structure(tf.constant, arrays)
    return tensors


def gather(examples: Examples, indices: tf.Tensor) -> Examples:
    """Those of the examples that the indices name, in the graph."""
    gathered: Examples = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), examples)
    return gathered


EVALUATION_BATCH = 500
PARTS = ("train", "validation", "test")


#: Tensors by name that are the same for all examples of a part.
Constants = dict[str, tf.Tensor]


def constants_of(task: Task, data: Any, part: str) -> Constants:
    """What the counts of a part need to know of it as a whole: of regression, the mean of its targets."""
    return {"centre": tf.constant(task.centre(data, part), tf.float64)} if isinstance(task, Regression) else {}


class StepIndex(NamedTuple):
    """Which examples each step takes: step `s` takes ``indices[offsets[s]:offsets[s + 1]]``, of which `real[s]` count
    (all, or none)."""

    indices: tf.Tensor
    offsets: tf.Tensor
    real: tf.Tensor
    batch: tf.Tensor


class ReplicaBatches(NamedTuple):
    """The batches of one replica for many steps: their index, the examples that it refers to, and what the counts of
    the part need to know beside them."""

    steps: StepIndex
    examples: Examples
    constants: Constants


#: Tensor specifications of an index.
STEPS = StepIndex(*(tf.TensorSpec([None], tf.int64) for _ in StepIndex._fields))


def step_index(partition: Partition) -> StepIndex:
    """The index of a partition, with its empty steps filled."""
    real = np.diff(partition.offsets)
    indices, offsets = partition.indices, partition.offsets
    if not real.all():
        indices = np.concatenate([partition.step(step) if real[step] else [0] for step in range(partition.steps)])
        offsets = np.concatenate([[0], np.cumsum(np.maximum(real, 1))])
    as_tensor = [tf.constant(values, tf.int64) for values in (indices, offsets, real, partition.batch)]
    return StepIndex(*as_tensor)


def evaluation_partition(examples: int, rank: int, workers: int) -> Partition:
    """The examples of a whole set that a replica evaluates, in steps of a fixed size and as many as the others have."""
    mine = evaluation_indices(examples, rank, workers)
    largest = -(-examples // workers)
    steps = -(-largest // EVALUATION_BATCH)
    offsets = np.minimum(np.arange(steps + 1, dtype=np.int64) * EVALUATION_BATCH, len(mine))
    return Partition(mine, offsets, np.diff(offsets))


def gather_batch(batches: ReplicaBatches, step: tf.Tensor) -> Batch:
    """Inputs and targets of a step."""
    index = batches.steps
    mine = gather(batches.examples, index.indices[index.offsets[step] : index.offsets[step + 1]])
    return Batch(mine.inputs, mine.targets, index.real[step], index.batch[step], batches.constants)


#: Bytes of inputs that a window of a streamed data set holds.
WINDOW_BYTES = 4 << 20


class Window(NamedTuple):
    """Steps `first` up to, not including, `last`, counted within `inputs`, which has an entry for each replica."""

    first: int
    last: int
    inputs: list[Any]


class Feed(ABC):
    """Gives the replicas of this process their batches."""

    #: Tensor specifications of one replica's inputs.
    spec: Any
    #: The epoch that begins, counted from 1; set by the learner.
    epoch: int = 0

    @abstractmethod
    def begin_epoch(self, schedule: Any) -> None: ...

    @abstractmethod
    def windows(self, first: int, last: int) -> Iterator[Window]:
        """The steps of a call, in order."""

    @abstractmethod
    def evaluation(self, part: Part) -> Iterator[Window]:
        """All of a part, each example once over all processes."""

    @abstractmethod
    def batch(self, inputs: Any, step: tf.Tensor) -> Batch:
        """The batch of a step from one replica's inputs, in the graph."""


def steps_per_window(source: Source, partitions: Sequence[Partition]) -> int:
    """The same in all processes, so that each makes the same calls, whether its part is in memory or on disk."""
    bytes_of_step = int(partitions[0].batch.max(initial=1)) * source.input_bytes
    return max(1, WINDOW_BYTES // max(1, bytes_of_step))


class HeldWindows:
    """Partitions of a part in memory. Windows end where those of a process that reads its part from disk do."""

    def __init__(
        self, source: Source, tensors: Examples, partitions: Sequence[Partition], constants: Constants | None = None
    ) -> None:
        self._inputs = [
            ReplicaBatches(step_index(partition), tensors, constants or {}) for partition in partitions
        ]
        self._length = steps_per_window(source, partitions)

    def windows(self, first: int, last: int) -> Iterator[Window]:
        while first < last:
            end = min(last, first - first % self._length + self._length)
            yield Window(first, end, self._inputs)
            first = end


class StreamedWindows:
    """Partitions of a part that is not in memory: windows of a few megabytes, the next one read while the present one
    is used."""

    def __init__(
        self, source: Source, partitions: Sequence[Partition], thread: ThreadPoolExecutor,
        constants: Constants | None = None, epoch: int = 0,
    ) -> None:
        self._source, self._partitions, self._thread = source, partitions, thread
        self._constants, self._epoch = constants or {}, epoch
        self._steps = partitions[0].steps
        self._length = steps_per_window(source, partitions)
        self._first, self._inputs = 0, list[ReplicaBatches]()
        self._next: Future[list[ReplicaBatches]] | None = thread.submit(self._read, 0)

    def _read(self, first: int) -> list[ReplicaBatches]:
        last = min(first + self._length, self._steps)
        inputs = []
        for partition in self._partitions:
            offsets = partition.offsets[first : last + 1]
            wanted = partition.indices[offsets[0] : offsets[-1]]
            places = np.arange(len(wanted), dtype=np.int64)
            index = step_index(Partition(places, offsets - offsets[0], partition.batch[first:last]))
            if not len(wanted):
                wanted = np.zeros(1, np.int64)  # what an empty step holds
            inputs.append(ReplicaBatches(index, self._source.read(wanted, self._epoch), self._constants))
        return inputs

    def windows(self, first: int, last: int) -> Iterator[Window]:
        while first < last:
            if not self._inputs or first >= self._first + self._length:
                self._advance(first - first % self._length)
            end = min(last, self._first + self._length)
            yield Window(first - self._first, end - self._first, self._inputs)
            first = end

    def _advance(self, first: int) -> None:
        assert self._next is not None
        self._inputs, self._first = self._next.result(), first
        after = first + self._length
        self._next = self._thread.submit(self._read, after) if after < self._steps else None


class IndexFeed(Feed):
    """Examples of a data set by their indices, in memory or, if they do not fit there, read ahead of their use."""

    def __init__(self, context: Context, ranks: range) -> None:
        self._context, self._ranks, self._world = context, ranks, context.job.workers
        self._sources = {part: Source(getattr(context.data, part)) for part in PARTS}
        self._constants = {part: constants_of(context.task, context.data, part) for part in PARTS}
        fixed = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in self._constants["train"].items()}
        self.spec = ReplicaBatches(STEPS, self._sources["train"].spec, fixed)
        self._tensors: dict[str, Examples] = {}
        self._thread = ThreadPoolExecutor(1)
        self._epoch: HeldWindows | StreamedWindows

    def _windows(self, part: str, partitions: Sequence[Partition], epoch: int = 0) -> HeldWindows | StreamedWindows:
        source, constants = self._sources[part], self._constants[part]
        if not source.in_memory:
            return StreamedWindows(source, partitions, self._thread, constants, epoch)
        if part not in self._tensors:
            self._tensors[part] = source.tensors()
        return HeldWindows(source, self._tensors[part], partitions, constants)

    def begin_epoch(self, schedule: Schedule) -> None:
        self._epoch = self._windows("train", [schedule.partition(rank) for rank in self._ranks], self.epoch)

    def windows(self, first: int, last: int) -> Iterator[Window]:
        return self._epoch.windows(first, last)

    def evaluation(self, part: Part) -> Iterator[Window]:
        examples = len(self._sources[part])
        partitions = [evaluation_partition(examples, rank, self._world) for rank in self._ranks]
        return self._windows(part, partitions).windows(0, partitions[0].steps)

    def batch(self, inputs: Any, step: tf.Tensor) -> Batch:
        return gather_batch(inputs, step)


class Rows(NamedTuple):
    """Rows of a text: words, the words after them, which of those count, and what losses are divided by."""

    inputs: tf.Tensor
    targets: tf.Tensor
    real: tf.Tensor
    batch: tf.Tensor


_WORDS = tf.TensorSpec([None, None], tf.int32)
ROWS = Rows(_WORDS, _WORDS, tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([], tf.int64))


def training_rows(words: Words, batch: int) -> Rows:
    """Inputs and targets from rows that are one word longer than both."""
    inputs, targets = tf.constant(words[:, :-1]), tf.constant(words[:, 1:])
    return Rows(inputs, targets, tf.ones_like(inputs, tf.float32), tf.constant(batch, tf.int64))


def evaluation_rows(text: Words, rank: int, workers: int, unroll: int) -> Rows:
    """The rows of one replica, in whole steps; one row that counts nothing for a replica without any."""
    read = rows_of_text(text, rank, workers)
    length = read.inputs.shape[1]
    missing = ((0, 0 if len(read.inputs) else 1), (0, -length % unroll))
    inputs, targets, real = (tf.constant(np.pad(each, missing)) for each in (read.inputs, read.targets, read.real))
    return Rows(inputs, targets, real, tf.constant(1, tf.int64))


def slice_words(rows: Rows, step: tf.Tensor, unroll: int) -> Batch:
    """The words of a step."""

    def some(values: tf.Tensor) -> tf.Tensor:
        return tf.slice(values, [0, tf.cast(step, tf.int32) * unroll], [-1, unroll])

    return Batch(some(rows.inputs), some(rows.targets), some(rows.real), rows.batch)


class TextFeed(Feed):
    """The rows of a text that the replicas of this process read."""

    spec = ROWS

    def __init__(self, context: Context, ranks: range) -> None:
        self._context, self._ranks, self._unroll = context, ranks, UNROLL.of(context.job)
        self._rows: list[Rows] = []

    def begin_epoch(self, schedule: TextSchedule) -> None:
        if not self._rows:  # every epoch reads the same
            train = self._context.data.train
            self._rows = [training_rows(schedule.rows(train, rank), schedule.batch) for rank in self._ranks]

    def windows(self, first: int, last: int) -> Iterator[Window]:
        yield Window(first, last, self._rows)

    def evaluation(self, part: Part) -> Iterator[Window]:
        text = getattr(self._context.data, part)
        rows = [evaluation_rows(text, rank, self._context.job.workers, self._unroll) for rank in self._ranks]
        yield Window(0, int(rows[0].inputs.shape[1]) // self._unroll, rows)

    def batch(self, inputs: Any, step: tf.Tensor) -> Batch:
        return slice_words(inputs, step, self._unroll)
