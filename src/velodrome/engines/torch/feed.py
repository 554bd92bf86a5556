"""Batches of examples or of a text as tensors: gathered from memory, or read from disk a little ahead of their use.

Numbers with fractions come in the job's format, whole numbers as int64, bytes of images scaled as `--pixels` says. A
batch is copied once; bytes of images, which are converted, twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from velodrome.data.examples import ArrayField, ExamplePart, ExampleSet
from velodrome.data.pixels import PixelTransform
from velodrome.job.job import Job
from velodrome.tasks.base import Batch
from velodrome.tasks.schedule import (
    Indices,
    Prefetch,
    Schedule,
    TextSchedule,
    Words,
    evaluation_indices,
    evaluation_rows,
)

#: Examples that are evaluated at a time.
EVALUATION_BATCH = 512
#: Targets of at most this many numbers are put in the order of an epoch when it begins.
_SMALL_TARGET = 64

Tensors = dict[str, torch.Tensor]
Converter = Callable[[torch.Tensor], torch.Tensor]


def dtype_of(job: Job) -> torch.dtype:
    """The format of the weights, and of inputs with fractions."""
    return torch.float64 if job.dtype == "float64" else torch.float32


def converter(
    transform: PixelTransform, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, *,
    channels_last: bool,
) -> Converter:
    """A function of bytes of images of (channels, height, width), stored in that order or with the channels last: one
    pass to convert them, one to scale them."""
    if transform.is_plain:
        (scale,) = transform.factor
        if scale == 1:
            return lambda pixels: pixels.to(dtype)
        return lambda pixels: pixels.to(dtype).mul_(scale)
    # As large as an image: with a number a channel, which PyTorch would repeat, it takes five to ten times longer.
    factor, offset = (
        torch.tensor(values, dtype=dtype, device=device)[:, None, None].expand(shape)
        for values in (transform.factor, transform.offset)
    )
    if channels_last:
        factor, offset = factor.permute(1, 2, 0), offset.permute(1, 2, 0)
    factor, offset = factor.contiguous(), offset.contiguous()

    def standardized(pixels: torch.Tensor) -> torch.Tensor:
        numbers = pixels.to(dtype)
        return torch.addcmul(offset, numbers, factor, out=numbers)

    return standardized


class Replica(NamedTuple):
    """One process among those that train together."""

    rank: int
    size: int
    device: torch.device
    #: Whether forward passes wait for one another, so that every process must make as many.
    lockstep: bool = False

    def evaluation_batches(self, examples: int, batch: int) -> tuple[Indices, Indices]:
        """The examples of a set that this process evaluates, and where its batches of at most `batch` begin and end."""
        mine = evaluation_indices(examples, self.rank, self.size)
        if not self.lockstep:
            return mine, np.minimum(np.arange(0, len(mine) + batch, batch), len(mine))
        count = -(-len(range(0, examples, self.size)) // batch)  # as many as the process with the most has
        return mine, len(mine) * np.arange(count + 1, dtype=np.int64) // max(1, count)


# -- columns


class Column:
    """How one input or target becomes a tensor: what is kept in memory, and what is done to each batch of it."""

    def __init__(
        self, field: ArrayField, dtype: torch.dtype, device: torch.device, *, channels_last: bool = False,
        pixels: PixelTransform | None = None,
    ) -> None:
        self._dtype = torch.int64 if field.is_whole and field.dtype != "bool" else dtype
        self._device, self._image, self._channels_last = device, field.image, channels_last
        self._convert: Converter | None = None
        if field.is_byte_image:
            assert pixels is not None, "bytes of images have a transform"
            height, width, channels = field.shape
            shape = channels, height, width
            self._convert = converter(pixels, shape, dtype, device, channels_last=channels_last)

    def held(self, array: np.ndarray) -> torch.Tensor:
        """The whole array as it is kept, from which rows are taken."""
        if self._image and not self._channels_last:
            array = np.moveaxis(array, -1, 1)
        tensor = _tensor(np.ascontiguousarray(array), self._device)
        return tensor if self._convert else tensor.to(self._dtype)

    def ready(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of what is kept, as the model takes them: images (count, channels, height, width)."""
        if self._convert:
            rows = self._convert(rows)
        return rows.permute(0, 3, 1, 2) if self._image and self._channels_last else rows


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    if array.dtype in (np.uint16, np.uint32, np.uint64):
        array = array.astype(np.int64)
    with warnings.catch_warnings():
        # Mapped or shared data cannot be written to, and is not: no copy is needed.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array).to(device)


class Columns:
    """Every input and target of a data set."""

    def __init__(
        self, data: ExampleSet, dtype: torch.dtype, device: torch.device, *, channels_last: bool,
        pixels: PixelTransform | None,
    ) -> None:
        """`channels_last`: images lie in memory as (height, width, channels), which is faster for convolutions on a
        CPU; a user's model may not take it (`view` fails)."""
        self.inputs = {
            field.name: Column(field, dtype, device, channels_last=channels_last, pixels=pixels)
            for field in data.inputs
        }
        self.targets = {field.name: Column(field, dtype, device) for field in data.targets}

    def batch(self, inputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> Batch:
        """A batch of rows that were read."""
        return Batch(_ready(self.inputs, inputs), _ready(self.targets, targets))


def _ready(columns: Mapping[str, Column], arrays: Mapping[str, np.ndarray]) -> Tensors:
    return {name: column.ready(column.held(arrays[name])) for name, column in columns.items()}


# -- parts


class HeldPart:
    """A part in memory, or in that of the device."""

    def __init__(self, part: ExamplePart, columns: Columns, device: torch.device) -> None:
        self._device, self._columns = device, columns
        self._inputs = {name: column.held(part.inputs[name]) for name, column in columns.inputs.items()}
        self._targets = {name: column.held(part.targets[name]) for name, column in columns.targets.items()}
        self._small = [name for name, held in self._targets.items() if held[:1].numel() <= _SMALL_TARGET]

    def begin(self, indices: Indices, offsets: Indices, epoch: int = 0) -> None:
        self._indices = torch.from_numpy(indices).to(self._device)
        self._ordered = {name: self._targets[name].index_select(0, self._indices) for name in self._small}

    def batch(self, low: int, high: int) -> Batch:
        chosen = self._indices[low:high]
        columns = self._columns.inputs
        inputs = {name: columns[name].ready(held.index_select(0, chosen)) for name, held in self._inputs.items()}
        targets = {
            name: self._ordered[name][low:high] if name in self._ordered else held.index_select(0, chosen)
            for name, held in self._targets.items()
        }
        return Batch(inputs, targets)


class PrefetchedPart:
    """A part that is mapped from files or computed: a thread reads the next few steps."""

    def __init__(self, part: ExamplePart, columns: Columns, device: torch.device) -> None:
        self._prefetch, self._columns = Prefetch(part), columns

    def begin(self, indices: Indices, offsets: Indices, epoch: int = 0) -> None:
        self._prefetch.begin(indices, offsets, epoch)

    def batch(self, low: int, high: int) -> Batch:
        return self._columns.batch(*self._prefetch.rows(low, high))


def part_of(part: ExamplePart, columns: Columns, device: torch.device) -> HeldPart | PrefetchedPart:
    """Where the batches of a part come from. Begin with an order of examples, then request one step after another."""
    return HeldPart(part, columns, device) if part.in_memory else PrefetchedPart(part, columns, device)


def repeated(batch: Batch, times: int) -> Any:
    """What the model takes for a batch, its examples repeated."""
    inputs = {name: torch.cat([tensor] * times) for name, tensor in batch.inputs.items()}
    return Batch(inputs, {}).x


# -- feeds


class Feed(Protocol):
    """The batches of a process, in training and evaluation."""

    def begin_epoch(self, schedule: Any, epoch: int) -> None:
        """Use the order of this schedule."""

    def steps(self, first: int, last: int) -> Iterator[tuple[Batch | None, float]]:
        """The batches of steps, None where this process has no example, and what the loss of each is divided by: the
        examples of the step over all processes, or the rows of a text."""

    def evaluation(self, part: str) -> Iterator[Batch]:
        """The batches of this process's share of a part."""

    def places(self, part: str) -> tuple[int, Indices]:
        """How many examples a part has, and which of them this process evaluates."""


class ExampleFeed:
    """Examples by their numbers."""

    def __init__(self, data: ExampleSet, columns: Columns, replica: Replica) -> None:
        self._data, self._columns, self._replica = data, columns, replica
        self._parts: dict[str, HeldPart | PrefetchedPart] = {}
        self.train = self._part("train")

    def _part(self, name: str) -> HeldPart | PrefetchedPart:
        if name not in self._parts:
            self._parts[name] = part_of(getattr(self._data, name), self._columns, self._replica.device)
        return self._parts[name]

    def begin_epoch(self, schedule: Schedule, epoch: int) -> None:
        partition = schedule.partition(self._replica.rank)
        self._offsets, self._batches = partition.offsets.tolist(), partition.batch.tolist()
        self.train.begin(partition.indices, partition.offsets, epoch)

    def steps(self, first: int, last: int) -> Iterator[tuple[Batch | None, float]]:
        train, offsets, batches = self.train, self._offsets, self._batches
        for step in range(first, last):
            low, high = offsets[step], offsets[step + 1]
            # Not by a variable, which would keep the batch while the optimizer could have its memory.
            yield train.batch(low, high) if low < high else None, batches[step]

    def evaluation(self, part: str) -> Iterator[Batch]:
        chosen = self._part(part)
        mine, offsets = self._evaluated(part)
        chosen.begin(mine, offsets)
        for low, high in pairwise(offsets.tolist()):
            yield chosen.batch(low, high)

    def places(self, part: str) -> tuple[int, Indices]:
        return len(getattr(self._data, part)), self._evaluated(part)[0]

    def _evaluated(self, part: str) -> tuple[Indices, Indices]:
        return self._replica.evaluation_batches(len(getattr(self._data, part)), EVALUATION_BATCH)


class TextFeed:
    """Rows of a text side by side. The state of each row is carried from step to step, where the network has one; a
    network without state reads every step's words by themselves."""

    def __init__(self, text: Any, unroll: int, objective: Any, replica: Replica) -> None:
        """`objective` has the `state` after its last loss, and the `initial_state` of any number of rows."""
        self._text, self._unroll, self._objective, self._replica = text, unroll, objective, replica

    def _tensor(self, words: Words) -> torch.Tensor:
        return torch.from_numpy(words).to(self._replica.device, torch.int64)

    def begin_epoch(self, schedule: TextSchedule, epoch: int) -> None:
        rows = self._tensor(schedule.rows(self._text.train, self._replica.rank))
        ends = [len(rows) * part // schedule.parts for part in range(schedule.parts + 1)]
        #: The rows of each part of a step; the last has some unless none has.
        self._parts = [rows[low:high] for low, high in pairwise(ends)]
        self._batch = schedule.batch
        self._states = [self._objective.initial_state(len(part)) for part in self._parts]

    def steps(self, first: int, last: int) -> Iterator[tuple[Batch | None, float]]:
        for number in range(first, last):
            step, part = divmod(number, len(self._parts))
            rows, columns = self._parts[part], slice(step * self._unroll, (step + 1) * self._unroll)
            if not len(rows):
                yield None, self._batch
                continue
            inputs = {"words": rows[:, columns], "state": self._states[part]}
            yield Batch(inputs, {"y": rows[:, 1:][:, columns]}), self._batch
            self._states[part] = self._objective.state

    def evaluation(self, part: str) -> Iterator[Batch]:
        read = evaluation_rows(getattr(self._text, part), self._replica.rank, self._replica.size)
        if self._replica.lockstep:
            read = read.with_a_row()
        if not len(read.inputs):
            return
        words, targets = self._tensor(read.inputs), self._tensor(read.targets)
        real = torch.from_numpy(read.real).to(self._replica.device)
        state = self._objective.initial_state(len(words))
        for first in range(0, words.shape[1], self._unroll):
            columns = slice(first, first + self._unroll)
            yield Batch({"words": words[:, columns], "state": state},
                        {"y": targets[:, columns], "counted": real[:, columns]})
            state = self._objective.state

    def places(self, part: str) -> tuple[int, Indices]:
        return 0, np.zeros(0, np.int64)
