"""Examples as named arrays: features of any shape, sequences, several inputs and targets, numbers as they are.

Byte images with one label each have a container of their own (`splits.Splits`), which training reads faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.splits import Part, Splits

Named = Mapping[str, NDArray[Any]]

#: Names of the only input and the only target, where the data does not name them.
INPUT, TARGET = "x", "y"


@dataclass(frozen=True)
class ArrayField:
    """One input or target: its name, the shape of one example, and the numpy name of its numbers (`float32`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole: classes, words, indices of an embedding."""
        return np.dtype(self.dtype).kind in "biu"

    @property
    def bytes(self) -> int:
        """Of one example."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ArrayPart:
    """Some examples: row `i` of every array belongs to example `i`.

    Numbers are float32 or float64, integers, booleans, or bytes (uint8) of pixels. Arrays may be mapped from files
    (`np.memmap`). A part that computes its rows when they are asked for is a subclass: it overrides `__len__`,
    `input_fields`, `target_fields`, `in_memory` and `gather`.
    """

    inputs: Named
    targets: Named

    def __len__(self) -> int:
        return next((int(array.shape[0]) for array in (*self.targets.values(), *self.inputs.values())), 0)

    @property
    def input_fields(self) -> tuple[ArrayField, ...]:
        return fields_of(self.inputs)

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        return fields_of(self.targets)

    @property
    def in_memory(self) -> bool:
        """Whether an engine may make tensors of the whole arrays; rows are read ahead of their use otherwise."""
        return not any(isinstance(array, np.memmap) for array in self.inputs.values())

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        """Inputs and targets of these examples, as copies; `epoch` is 0 in an evaluation."""
        return _rows(self.inputs, indices), _rows(self.targets, indices)


@dataclass(frozen=True)
class Arrays:
    """Training, validation and test examples."""

    name: str
    train: ArrayPart
    validation: ArrayPart
    test: ArrayPart
    #: Of the only target, where its numbers are classes; the number of its columns for a matrix of labels.
    classes: int | None = None
    #: Of the classes, or of the columns of the target; empty where they have no names.
    class_names: tuple[str, ...] = ()
    #: Inputs that are images (height, width, channels): an engine feeds them in its own order of axes.
    images: frozenset[str] = frozenset()
    #: A byte of an image times this is between 0 and 1.
    scale: float = 1 / 255
    #: What was left out or changed on the way, as sentences for the reader of a run.
    notes: tuple[str, ...] = ()
    #: What was done to the columns of a table, as plain JSON: it is stored with the model.
    columns: Mapping[str, Any] = field(default_factory=dict)
    #: As in `Splits`, for data that lies in files.
    files: tuple[int, ...] = ()
    own_files: bool = False
    #: As in `Splits`.
    content: str = ""
    #: Promises of exactness that do not apply to this data, as sentences: a stream has no order to keep.
    caveats: tuple[str, ...] = ()
    #: Whether examples can only be read from front to back, so that an epoch visits them in their own order.
    in_order: bool = False

    @property
    def inputs(self) -> tuple[ArrayField, ...]:
        return self.train.input_fields

    @property
    def targets(self) -> tuple[ArrayField, ...]:
        return self.train.target_fields

    @property
    def input_shape(self) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
        """The shape of the only input, or of each by name; images are (height, width, channels)."""
        shapes = {one.name: one.shape for one in self.inputs}
        return next(iter(shapes.values())) if len(shapes) == 1 else shapes

    def with_targets(self, change: Any, **more: Any) -> Arrays:
        """The same examples with other targets: `change` makes them from those of a part."""
        train, validation, test = (replace_targets(part, change) for part in (self.train, self.validation, self.test))
        return replace(self, train=train, validation=validation, test=test, **more)


@dataclass(frozen=True)
class ChangedTargets(ArrayPart):
    """A part whose rows are computed when they are asked for, with other targets."""

    part: ArrayPart = field(default_factory=lambda: ArrayPart({}, {}))
    change: Any = None

    def __len__(self) -> int:
        return len(self.part)

    @property
    def input_fields(self) -> tuple[ArrayField, ...]:
        return self.part.input_fields

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        empty = {one.name: np.zeros((0, *one.shape), one.dtype) for one in self.part.target_fields}
        return fields_of(self.change(empty))

    @property
    def in_memory(self) -> bool:
        return False

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        inputs, targets = self.part.gather(indices, epoch)
        return inputs, self.change(targets)


def replace_targets(part: ArrayPart, change: Any) -> ArrayPart:
    """The part with the targets that `change` makes of its own."""
    if type(part) is ArrayPart:
        return ArrayPart(part.inputs, change(part.targets))
    return ChangedTargets({}, {}, part, change)


def fields_of(arrays: Named) -> tuple[ArrayField, ...]:
    return tuple(ArrayField(name, tuple(array.shape[1:]), array.dtype.name) for name, array in arrays.items())


def _rows(arrays: Named, indices: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(array).take(indices, axis=0) for name, array in arrays.items()}


def implied_task(targets: Iterable[ArrayField]) -> str:
    """The task that targets are for: fractions are predicted, whole numbers are classes, a matrix of them is labels."""
    found = tuple(targets)
    if any(not one.is_whole for one in found):
        return "regression"
    return "classification" if len(found) == 1 and not found[0].shape else "multi-label"


def arrays_of_images(splits: Splits) -> Arrays:
    """Labelled images as named arrays, for tasks other than classification; nothing is copied."""

    def part(images: Part) -> ArrayPart:
        return ArrayPart({INPUT: images.images}, {TARGET: images.labels})

    return Arrays(
        splits.name, part(splits.train), part(splits.validation), part(splits.test), classes=splits.classes,
        class_names=splits.class_names, images=frozenset({INPUT}), scale=splits.scale, notes=splits.notes,
        files=splits.files, own_files=splits.own_files, content=splits.content,
    )
