"""How stored bytes become the input of a model: a factor and an offset, per channel if they are standardized."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import ChannelStatistics, ExampleSet, Gather
from velodrome.errors import BadRequest

#: From 0 to 1, from 0 to 255, or with mean 0 and standard deviation 1 over the training images.
Form = Literal["unit", "byte", "standardize"]
_BRIGHTEST = 255
#: Bytes that are counted at a time.
_WINDOW = 4 << 20


@dataclass(frozen=True)
class PixelTransform:
    """A stored byte times `factor` plus `offset` is fed to the model: one number for all channels, or one each."""

    form: Form
    factor: tuple[float, ...]
    offset: tuple[float, ...]

    def __call__(self, images: NDArray[np.uint8], dtype: str = "float64") -> NDArray[np.floating[Any]]:
        """Images (…, channels) as they are fed to the model, for engines that compute in NumPy."""
        numbers: NDArray[np.floating[Any]] = images.astype(dtype)
        numbers *= np.asarray(self.factor, dtype)
        if any(self.offset):
            numbers += np.asarray(self.offset, dtype)
        return numbers

    @property
    def is_plain(self) -> bool:
        """Whether one factor for all channels is enough."""
        return len(self.factor) == 1 and not any(self.offset)

    def description(self) -> dict[str, Any]:
        """What a saved model records: its input is a byte times `scale` plus `offset`."""
        alone = len(self.factor) == 1
        return {
            "pixels": self.form,
            "scale": self.factor[0] if alone else list(self.factor),
            "offset": self.offset[0] if alone else list(self.offset),
        }


def transform_of(form: str, data: ExampleSet) -> PixelTransform:
    """The transform of images for `--pixels`; `auto` is `unit`, because nothing is known of the model here."""
    transform = transform_of_arrays(form, data)
    assert transform is not None, "images are bytes"
    return transform


def transform_of_arrays(form: str, data: ExampleSet) -> PixelTransform | None:
    """The same for the bytes of images among the inputs; None if there are none."""
    bytes_of_images = [column.name for column in data.inputs if column.name in data.images and column.dtype == "uint8"]
    if not bytes_of_images:
        return None
    if form == "standardize" and bytes_of_images[0] not in data.train.inputs:
        raise BadRequest(
            f"--pixels standardize: {data.name!r} is read example by example, and the mean of its pixels would need "
            "all of them: leave it out, and standardise in the model or in the data set"
        )
    return _transform(form, data.scale, lambda: data.statistics or measure(data.train.inputs[bytes_of_images[0]]))


def _transform(form: str, scale: float, statistics: Callable[[], ChannelStatistics]) -> PixelTransform:
    if form == "standardize":
        measured = statistics()
        # A channel that is the same everywhere becomes zero.
        spread = [deviation or 1.0 for deviation in measured.deviation]
        factor = tuple(1 / deviation for deviation in spread)
        offset = tuple(-mean / deviation for mean, deviation in zip(measured.mean, spread, strict=True))
        return PixelTransform("standardize", factor, offset)
    if form == "byte":
        return PixelTransform("byte", (scale * _BRIGHTEST,), (0.0,))
    return PixelTransform("unit", (scale,), (0.0,))


def measure(images: NDArray[np.uint8]) -> ChannelStatistics:
    """Mean and standard deviation of each channel, from exact counts: the same for every worker that has the images."""
    channels = images.shape[-1]
    counts = np.zeros((channels, _BRIGHTEST + 1), np.int64)
    length = max(1, _WINDOW // max(1, math.prod(images.shape[1:])))
    gather = Gather(images) if isinstance(images, np.memmap) else None
    for first in range(0, images.shape[0], length):
        last = min(first + length, images.shape[0])
        some = images[first:last] if gather is None else gather(np.arange(first, last, dtype=np.int64))
        pixels = some.reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[:, channel], minlength=_BRIGHTEST + 1)
    return ChannelStatistics(*zip(*(_moments(row.tolist()) for row in counts), strict=True))


def _moments(counts: list[int]) -> tuple[float, float]:
    """Mean and standard deviation of bytes that occur so often."""
    number = max(1, sum(counts))
    total = sum(value * count for value, count in enumerate(counts))
    squares = sum(value * value * count for value, count in enumerate(counts))
    # In whole numbers up to the last division, so that nothing is rounded away.
    return total / number, math.sqrt((number * squares - total * total) / (number * number))
