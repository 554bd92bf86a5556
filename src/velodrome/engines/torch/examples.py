"""Batches of images: gathered from a tensor of bytes in memory, or read from disk a little ahead of their use.

Either way they are scaled batch by batch.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from velodrome.data.examples import ExamplePart, ExampleSet, Gather
from velodrome.data.pixels import PixelTransform, transform_of
from velodrome.engines.torch.network import dtype_of
from velodrome.engines.torch.pixels import converter
from velodrome.job.job import Job
from velodrome.tasks.schedule import Indices

#: Bytes of images that are read at a time from data that is not in memory.
WINDOW_BYTES = 8 << 20


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    with warnings.catch_warnings():
        # Mapped or shared data cannot be written to, and is not: no copy is needed.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array).to(device)


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
