"""Batches of named arrays as tensors: gathered from memory, or read a little ahead of their use.

Numbers with fractions come in the job's format, whole numbers as int64, bytes of images scaled as `--pixels` says. A
batch is copied once; bytes of images, which are converted, twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from velodrome.data.examples import ArrayField, ExamplePart, ExampleSet
from velodrome.data.pixels import PixelTransform
from velodrome.engines.torch.pixels import converter
from velodrome.tasks.counts import Batch
from velodrome.tasks.prefetch import Prefetch
from velodrome.tasks.schedule import Indices

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
