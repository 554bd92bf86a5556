"""Batches of examples as tensors: gathered from memory, or read from disk a little ahead of their use."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from velodrome.data.examples import ArrayField, ExamplePart, ExampleSet, Gather
from velodrome.data.pixels import PixelTransform, transform_of
from velodrome.job.job import Job
from velodrome.tasks.counts import Batch
from velodrome.tasks.prefetch import Prefetch
from velodrome.tasks.schedule import Indices


def dtype_of(job: Job) -> torch.dtype:
    """The format of the weights, and of inputs with fractions."""
    return torch.float64 if job.dtype == "float64" else torch.float32


Converter = Callable[[torch.Tensor], torch.Tensor]


def converter(
    transform: PixelTransform, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, *,
    channels_last: bool,
) -> Converter:
    """A function of bytes of images of (channels, height, width), stored in that order or with the channels last."""
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


#: Bytes of images that are read at a time from data that is not in memory.
WINDOW_BYTES = 8 << 20


class Examples(ABC):
    """One part of a data set, iterated over in a new order for each epoch."""

    def __init__(
        self, part: ExamplePart, transform: PixelTransform, dtype: torch.dtype, device: torch.device, *,
        channels_last: bool,
    ) -> None:
        """`channels_last`: images are stored as (height, width, channels), otherwise as (channels, height, width)."""
        self._labels = _tensor(np.ascontiguousarray(part.labels, dtype=np.int64), device)
        self._device = device
        height, width, channels = part.images.shape[1:]
        shape = channels, height, width
        self._convert = converter(transform, shape, dtype, device, channels_last=channels_last)

    def __len__(self) -> int:
        return len(self._labels)

    def begin(self, indices: Indices, offsets: Indices) -> torch.Tensor:
        """Use this order of examples, with the offsets of its steps; returns the labels in that order."""
        self._indices = torch.from_numpy(indices).to(self._device)
        return self._labels.index_select(0, self._indices)

    @abstractmethod
    def images(self, low: int, high: int) -> torch.Tensor:
        """Images (count, channels, height, width), from position `low` of the order up to, not including, `high`. Must
        be called for one step after the other."""


class InMemoryExamples(Examples):
    """All images in memory, or in that of the device."""

    def __init__(
        self, part: ExamplePart, transform: PixelTransform, dtype: torch.dtype, device: torch.device, *,
        channels_last: bool,
    ) -> None:
        super().__init__(part, transform, dtype, device, channels_last=channels_last)
        # Models of the zoo take channels-last memory, which is faster for convolutions on a CPU; a user's model may not
        # (`view` fails).
        images = part.images if channels_last else part.images.transpose(0, 3, 1, 2)
        self._images = _tensor(np.ascontiguousarray(images), device)
        self._channels_last = channels_last

    def images(self, low: int, high: int) -> torch.Tensor:
        chosen = self._convert(self._images.index_select(0, self._indices[low:high]))
        return chosen.permute(0, 3, 1, 2) if self._channels_last else chosen


class StreamedExamples(Examples):
    """Images mapped from disk: a thread reads the next few steps while the ones before are trained on."""

    def __init__(
        self, part: ExamplePart, transform: PixelTransform, dtype: torch.dtype, device: torch.device, *,
        channels_last: bool,
    ) -> None:
        super().__init__(part, transform, dtype, device, channels_last=True)
        self._gather, self._channels_last = Gather(part.images), channels_last
        self._bytes = int(np.prod(part.images.shape[1:]))
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="examples")

    def begin(self, indices: Indices, offsets: Indices) -> torch.Tensor:
        self._order, self._window = indices, (0, 0)
        longest = int(np.diff(offsets).max(initial=1))
        steps = max(1, WINDOW_BYTES // max(1, longest * self._bytes))
        # Windows end where steps do.
        self._ends = np.unique(np.append(offsets[::steps], offsets[-1:])).tolist()
        self._number = 0
        self._next = self._read(0)
        return super().begin(indices, offsets)

    def _read(self, number: int) -> Future[np.ndarray] | None:
        if number + 1 >= len(self._ends):
            return None
        return self._reader.submit(self._gather, self._order[self._ends[number] : self._ends[number + 1]])

    def images(self, low: int, high: int) -> torch.Tensor:
        while low >= self._window[1]:
            assert self._next is not None, "steps must be requested in order"
            self._held = self._next.result()
            self._window = self._ends[self._number], self._ends[self._number + 1]
            self._number += 1
            self._next = self._read(self._number)
        first = self._window[0]
        chosen = torch.from_numpy(self._held[low - first : high - first]).to(self._device)
        chosen = self._convert(chosen).permute(0, 3, 1, 2)
        return chosen if self._channels_last else chosen.contiguous()


def examples_of(
    data: ExampleSet, part: str, job: Job, device: torch.device, *, channels_last: bool,
    pixels: PixelTransform | None = None,
) -> Examples:
    """A part of the data set, in memory unless its images are mapped from a file."""
    chosen: ExamplePart = getattr(data, part)
    kind = StreamedExamples if isinstance(chosen.images, np.memmap) else InMemoryExamples
    transform = pixels or transform_of(job.pixels, data)
    return kind(chosen, transform, dtype_of(job), device, channels_last=channels_last)


Tensors = dict[str, torch.Tensor]

#: Targets of so many numbers or fewer are put in the order of an epoch at its begin.
_SMALL_TARGET = 64


class Column:
    """How one input or target becomes a tensor: what is kept in memory, and what is done to each batch of it."""

    def __init__(
        self, field: ArrayField, dtype: torch.dtype, device: torch.device, *, image: bool = False,
        channels_last: bool = False, pixels: PixelTransform | None = None,
    ) -> None:
        self._dtype = torch.int64 if field.is_whole and field.dtype != "bool" else dtype
        self._device, self._image, self._channels_last = device, image, channels_last
        self._convert: Callable[[torch.Tensor], torch.Tensor] | None = None
        if image and field.dtype == "uint8":
            assert pixels is not None, "bytes of images have a transform"
            height, width, channels = field.shape
            shape = channels, height, width
            self._convert = converter(pixels, shape, dtype, device, channels_last=channels_last)

    def held(self, array: np.ndarray) -> torch.Tensor:
        """The whole array as it is kept, from which rows are taken."""
        if self._image and not self._channels_last:
            array = np.moveaxis(array, -1, 1)
        found = _tensor(np.ascontiguousarray(array), self._device)
        return found if self._convert else found.to(self._dtype)

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
        self.inputs = {
            one.name: Column(one, dtype, device, image=one.name in data.images, channels_last=channels_last,
                             pixels=pixels)
            for one in data.inputs
        }
        self.targets = {one.name: Column(one, dtype, device) for one in data.targets}

    def batch(self, inputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> Batch:
        """A batch of rows that were read."""
        return Batch(_ready(self.inputs, inputs), _ready(self.targets, targets))


def _ready(columns: Mapping[str, Column], arrays: Mapping[str, np.ndarray]) -> Tensors:
    return {name: column.ready(column.held(arrays[name])) for name, column in columns.items()}


class HeldFeed:
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


class AheadFeed:
    """A part that is mapped from files or computed: a thread reads the next few steps."""

    def __init__(self, part: ExamplePart, columns: Columns, device: torch.device) -> None:
        self._ahead, self._columns = Prefetch(part), columns

    def begin(self, indices: Indices, offsets: Indices, epoch: int = 0) -> None:
        self._ahead.begin(indices, offsets, epoch)

    def batch(self, low: int, high: int) -> Batch:
        return self._columns.batch(*self._ahead.rows(low, high))


Feed = HeldFeed | AheadFeed


def feed_of(part: ExamplePart, columns: Columns, device: torch.device) -> Feed:
    """Where the batches of a part come from. Begin with an order of examples, then request one step after another."""
    return HeldFeed(part, columns, device) if part.in_memory else AheadFeed(part, columns, device)


def repeated(batch: Batch, times: int) -> Any:
    """What the model takes for a batch, its examples repeated."""
    inputs = {name: torch.cat([tensor] * times) for name, tensor in batch.inputs.items()}
    return Batch(inputs, {}).x
