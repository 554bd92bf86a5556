"""A data set as training sees it: three parts that never share an example."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Part:
    """Images as bytes (count, height, width, channels) and their labels (count)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of the bytes of each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Splits:
    """Training, validation and test examples; a pixel times `scale` is between 0 and 1."""

    name: str
    train: Part
    validation: Part
    test: Part
    classes: int
    scale: float
    #: Empty where they have no names.
    class_names: tuple[str, ...] = ()
    #: What was left out or changed on the way, as sentences for the reader of a run.
    notes: tuple[str, ...] = ()
    #: Examples of each file that the training part lies in; empty for data that does not lie in files. In the order of
    #: the part, files take turns, one example each.
    files: tuple[int, ...] = ()
    #: Whether `train` holds only the files of this worker.
    own_files: bool = False
    #: Those of the notes that are about images which occur twice.
    overlaps: tuple[str, ...] = ()
    #: Equal for equal examples, however they are divided and in whatever order they are; empty if it is not known.
    content: str = ""
    #: Of the whole training part, where they are known without reading it.
    statistics: ChannelStatistics | None = None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels
