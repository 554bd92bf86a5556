"""Pixels: arrays of numbers become bytes, and stored bytes become the input of a model.

Every number of an image that comes as an array is checked and converted to a byte, a window of rows at a time; single
images that cannot be used are faults. A model is fed each byte times a factor plus an offset, per channel if pixels are
standardized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from velodrome.data.base import Faults, Gather, NDArray, WrongData, is_mapped, np
from velodrome.data.examples import ChannelStatistics, ExampleSet
from velodrome.errors import BadRequest, bytes_text
from velodrome.machine import process_memory

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
    bytes_of_images = [column.name for column in data.inputs if column.is_byte_image]
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
    gather = Gather(images) if is_mapped(images) else None
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


#: Pixels that are converted at a time.
WINDOW_PIXELS = 2 << 20
#: Bytes of memory for a pixel that is converted, in addition to its own: as a double, rounded, compared, as a byte.
_EACH = 26


class RowArray(Protocol):
    """An array that is read from front to back."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def windows(self, rows: int) -> Iterator[NDArray[Any]]:
        """All rows, at most so many at a time."""

    def whole(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class HeldArray:
    """An array in memory."""

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def windows(self, rows: int) -> Iterator[NDArray[Any]]:
        for first in range(0, len(self.array), rows):
            yield self.array[first : first + rows]

    def whole(self) -> NDArray[Any]:
        return self.array


def has_fractions(array: RowArray) -> bool:
    return array.dtype.kind == "f"


def check_memory(arrays: Sequence[RowArray]) -> None:
    """Refuse images of which not even one could be converted."""
    for array in arrays:
        pixels = math.prod(array.shape[1:])
        needed, free = max(1, _rows_of_window(array)) * pixels * (array.dtype.itemsize + _EACH), process_memory()
        if needed > free:
            size = "×".join(map(str, array.shape[1:]))
            raise WrongData(
                f"to convert images of {size} takes {bytes_text(needed)} of memory, but only {bytes_text(free)} are "
                "free: make them smaller"
            )


def _rows_of_window(array: RowArray) -> int:
    return max(1, WINDOW_PIXELS // max(1, math.prod(array.shape[1:])))


def scale_of(arrays: Sequence[RowArray]) -> float | None:
    """What pixels are multiplied with to become bytes without loss: 255 if they are from 0 to 1, or 1. None if that is
    not possible. What is not finite, and single examples out of range, are found later.

    All arrays have fractions, or none has.
    """
    scales = [255.0, 1.0]
    for array in arrays:
        for window in array.windows(_rows_of_window(array)):
            if has_fractions(array):
                numbers = window[np.isfinite(window)].astype(np.float64)
                scales = [scale for scale in scales if _lossless(numbers, scale)]
            else:
                flat = window.reshape(len(window), -1)
                inside = (flat.min(axis=1) >= 0) & (flat.max(axis=1) <= 255)
                if 2 * int(inside.sum()) < len(window):
                    return None
                scales = [1.0] if flat.max(initial=0) > 1 else scales
                if array.dtype == np.uint8 and scales == [1.0]:
                    break  # they are bytes
            if not scales:
                return None
    return scales[0]


def _lossless(numbers: NDArray[np.float64], scale: float) -> bool:
    """Whether numbers times the scale are bytes, up to the rounding of float32."""
    if not len(numbers):
        return True
    scaled = numbers * scale
    near = np.rint(scaled)
    return bool(near.min() >= 0 and near.max() <= 255 and (np.abs(scaled - near) <= 255 * 2.0**-22).all())


def to_bytes(
    key: str, array: RowArray, scale: float, faults: Faults
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
    """Pixels (rows, …) as bytes, and which of the rows can be used; the others are faults."""
    first = 0
    for window in array.windows(_rows_of_window(array)):
        if array.dtype == np.uint8 and scale == 1:
            yield window, np.ones(len(window), np.bool_)
        else:
            yield _converted(key, window, first, scale, faults)
        first += len(window)


def _converted(
    key: str, window: NDArray[Any], first: int, scale: float, faults: Faults
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    numbers = window.reshape(len(window), -1).astype(np.float64)
    numbers *= scale
    finite = np.asarray(np.isfinite(numbers).all(axis=1))
    numbers[~finite] = 0
    within = (numbers.min(axis=1) >= 0) & (numbers.max(axis=1) <= 255)
    numbers[~within] = 0
    for place in np.flatnonzero(~finite):
        faults.add("examples with NaN or infinity", f"{key}[{first + place}]")
    for place in np.flatnonzero(~within):
        faults.add("examples with pixels outside 0 to 255", f"{key}[{first + place}]")
    pixels: NDArray[np.uint8] = np.rint(numbers, out=numbers).astype(np.uint8)
    return pixels.reshape(window.shape), finite & within
