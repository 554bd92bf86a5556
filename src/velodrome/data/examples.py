"""Examples as training sees them, in three parts that never share one: named columns of numbers, or a text.

Columns have features of any shape, sequences, several inputs and targets, numbers as they are. A column of images of
bytes, with one class each as the only target, has a fast path in engines. A text is a row of words.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

from velodrome.data.base import Gather, NDArray, is_mapped, np

Named: TypeAlias = "Mapping[str, NDArray[Any]]"
#: Makes other targets from those of a part.
Change: TypeAlias = Callable[[Named], Named]
#: Returns the inputs and targets of the examples with these indices in an epoch, which is 0 in an evaluation.
Read: TypeAlias = "Callable[[NDArray[np.int64], int], tuple[Named, Named]]"

#: Names of the only input and the only target, where the data does not name them.
INPUT, TARGET = "x", "y"


@dataclass(frozen=True)
class ArrayField:
    """One input or target: its name, the shape of one example, and the numpy name of its numbers (`float32`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    #: Whether it is an image (height, width, channels): an engine feeds it in its own order of axes.
    image: bool = field(default=False, compare=False, repr=False)

    @property
    def is_byte_image(self) -> bool:
        """Whether it is an image of bytes, which becomes numbers when it is fed."""
        return self.image and self.dtype == "uint8"

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole: classes, words, indices of an embedding."""
        return np.dtype(self.dtype).kind in "biu"

    @property
    def bytes(self) -> int:
        """Of one example."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ExamplePart:
    """Some examples: row `i` of every array belongs to example `i`.

    Numbers are float32 or float64, integers, booleans, or bytes (uint8) of pixels; they may be mapped from files.
    """

    inputs: Named
    targets: Named
    #: Whether rows are computed when they are asked for: see `ComputedPart`.
    computed: ClassVar[bool] = False

    def __len__(self) -> int:
        return next((int(array.shape[0]) for array in (*self.targets.values(), *self.inputs.values())), 0)

    @property
    def images(self) -> NDArray[np.uint8]:
        """The only input of labelled images (count, height, width, channels)."""
        return self.inputs[INPUT]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The only target of labelled images (count)."""
        return self.targets[TARGET]

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All that it holds."""
        return *self.inputs.values(), *self.targets.values()

    @property
    def input_fields(self) -> tuple[ArrayField, ...]:
        return fields_of(self.inputs)

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        return fields_of(self.targets)

    @property
    def in_memory(self) -> bool:
        """Whether an engine may make tensors of the whole arrays; rows are read ahead of their use otherwise."""
        return not self.computed and not any(map(is_mapped, self.inputs.values()))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        """Inputs and targets of these examples, as copies; `epoch` is 0 in an evaluation."""
        inputs, targets = ({name: np.asarray(array).take(indices, axis=0) for name, array in side.items()}
                           for side in (self.inputs, self.targets))
        return inputs, targets

    def reader(self) -> Read:
        """A function that gathers examples all through a training, without mapped files growing the process."""
        inputs = {name: Gather(array) for name, array in self.inputs.items()}
        targets = {name: Gather(array) for name, array in self.targets.items()}

        def read(indices: NDArray[np.int64], epoch: int) -> tuple[Named, Named]:
            return ({name: gather(indices) for name, gather in inputs.items()},
                    {name: gather(indices) for name, gather in targets.items()})

        return read

    def with_targets(self, change: Change) -> ExamplePart:
        """The same examples with the targets that `change` makes of these."""
        return ExamplePart(self.inputs, change(self.targets))


def image_part(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> ExamplePart:
    """Images (count, height, width, channels) and the class of each."""
    return ExamplePart({INPUT: images}, {TARGET: labels})


@dataclass(frozen=True)
class ComputedPart(ExamplePart):
    """A part that computes its rows when they are asked for: it overrides `__len__`, the fields and `gather`."""

    computed: ClassVar[bool] = True

    def reader(self) -> Read:
        return self.gather

    def with_targets(self, change: Change) -> ExamplePart:
        return ChangedTargets({}, {}, self, change)


@dataclass(frozen=True)
class DerivedPart(ComputedPart):
    """What is computed from another part, example by example."""

    part: ExamplePart = field(default_factory=lambda: ExamplePart({}, {}))

    def __len__(self) -> int:
        return len(self.part)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        return self.part.arrays

    @property
    def input_fields(self) -> tuple[ArrayField, ...]:
        return self.part.input_fields

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        return self.part.target_fields


@dataclass(frozen=True)
class ChangedTargets(DerivedPart):
    """A computed part with other targets."""

    change: Change = dict

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        empty = {column.name: np.zeros((0, *column.shape), column.dtype) for column in self.part.target_fields}
        return fields_of(self.change(empty))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        inputs, targets = self.part.gather(indices, epoch)
        return inputs, self.change(targets)


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of the bytes of each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class ExampleSet:
    """Training, validation and test examples."""

    name: str
    train: ExamplePart
    validation: ExamplePart
    test: ExamplePart
    #: Of the only target, where its numbers are classes; the number of its columns for a matrix of labels.
    classes: int | None = None
    #: Of the classes, or of the columns of the target; empty where they have no names.
    class_names: tuple[str, ...] = ()
    #: Inputs that are images: see `ArrayField.image`.
    images: frozenset[str] = frozenset()
    #: A byte of an image times this is between 0 and 1.
    scale: float = 1 / 255
    #: What was left out or changed on the way, as sentences for the reader of a run.
    notes: tuple[str, ...] = ()
    #: Those of the notes that are about images which occur twice.
    overlaps: tuple[str, ...] = ()
    #: Equal for equal examples, however they are divided and in whatever order they are; empty if it is not known.
    content: str = ""
    #: Of the images of the whole training part, where they are known without reading it.
    statistics: ChannelStatistics | None = None
    #: What was done to the columns of a table, as plain JSON: it is stored with the model.
    columns: Mapping[str, Any] = field(default_factory=dict)
    #: Examples of each file that the training part lies in; empty for data that does not lie in files. In the order of
    #: the part, files take turns, one example each.
    files: tuple[int, ...] = ()
    #: Whether `train` holds only the files of this worker.
    own_files: bool = False
    #: Guarantees of exactness that do not hold for this data, as sentences: a stream has no order to keep.
    caveats: tuple[str, ...] = ()
    #: Whether examples can only be read from front to back, so that an epoch visits them in their own order.
    in_order: bool = False

    @property
    def parts(self) -> tuple[ExamplePart, ExamplePart, ExamplePart]:
        return self.train, self.validation, self.test

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All that its parts hold; each is there once, however many parts share it."""
        return tuple({id(array): array for part in self.parts for array in part.arrays}.values())

    @property
    def inputs(self) -> tuple[ArrayField, ...]:
        return tuple(replace(column, image=column.name in self.images) for column in self.train.input_fields)

    @property
    def targets(self) -> tuple[ArrayField, ...]:
        return self.train.target_fields

    @property
    def kind(self) -> Literal["images", "arrays"]:
        """`images`: each example is one image of bytes with one class, held as `image_part` makes it."""
        labelled = self.targets == (ArrayField(TARGET, (), "int64"),) and self.classes is not None
        only = self.inputs[0] if len(self.inputs) == 1 else None
        fast = labelled and only is not None and only.name == INPUT and only.is_byte_image
        return "images" if fast and not any(part.computed for part in self.parts) else "arrays"

    @property
    def input_shape(self) -> Any:
        """The shape of the only input, or of each by name; images are (height, width, channels)."""
        shapes = {column.name: column.shape for column in self.inputs}
        return next(iter(shapes.values())) if len(shapes) == 1 else shapes

    @property
    def class_count(self) -> int:
        """Of data that has classes, as labelled images have."""
        assert self.classes is not None, "classes were counted when it was loaded"
        return self.classes

    def with_targets(self, change: Change, **more: Any) -> ExampleSet:
        """The same examples with other targets: `change` makes them from those of a part."""
        train, validation, test = (part.with_targets(change) for part in self.parts)
        return replace(self, train=train, validation=validation, test=test, **more)

    def identity(self) -> dict[str, Any]:
        """What identifies the data of a run: examples of each part, and a fingerprint of their content.

        Examples that are computed on demand may differ each time: only their number and form count.
        """
        counts = {"train": sum(self.files) if self.own_files else len(self.train), "validation": len(self.validation),
                  "test": len(self.test)}
        form = json.dumps(counts) + repr((self.inputs, self.targets))
        return {**counts, "fingerprint": self.content or hashlib.blake2b(form.encode(), digest_size=8).hexdigest()}


def image_set(
    name: str, train: ExamplePart, validation: ExamplePart, test: ExamplePart, *, classes: int, scale: float = 1 / 255,
    **more: Any,
) -> ExampleSet:
    """Labelled images, each part made by `image_part`."""
    return ExampleSet(
        name, train, validation, test, classes=classes, images=frozenset({INPUT}), scale=scale, **more
    )


def fields_of(arrays: Named) -> tuple[ArrayField, ...]:
    return tuple(ArrayField(name, tuple(array.shape[1:]), array.dtype.name) for name, array in arrays.items())


def implied_task(targets: Iterable[ArrayField]) -> str:
    """The task that targets are for: fractions are predicted, whole numbers are classes, a matrix of them is labels."""
    fields = tuple(targets)
    if any(not column.is_whole for column in fields):
        return "regression"
    return "classification" if len(fields) == 1 and not fields[0].shape else "multi-label"


#: Words that are read at a time for a fingerprint.
_WORDS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Text:
    """Each part is one long row of places in `vocabulary`; every line ends with the place of `<eos>`."""

    name: str
    train: NDArray[np.int32]
    validation: NDArray[np.int32]
    test: NDArray[np.int32]
    vocabulary: list[str]
    #: What was left out or changed on the way, as sentences for the reader of a run.
    notes: tuple[str, ...] = ()
    #: As in `ExampleSet`; a text has none of the last two.
    kind: ClassVar[Literal["text"]] = "text"
    caveats: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @property
    def arrays(self) -> tuple[NDArray[np.int32], ...]:
        return self.train, self.validation, self.test

    def identity(self) -> dict[str, Any]:
        """What identifies the text of a run: words of each part, and a fingerprint of these and the vocabulary."""
        counts = {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}
        content = hashlib.blake2b((json.dumps(counts) + "\n".join(self.vocabulary)).encode(), digest_size=8)
        for part in self.arrays:
            for first in range(0, len(part), _WORDS_AT_ONCE):
                content.update(np.ascontiguousarray(part[first : first + _WORDS_AT_ONCE]).data)
        return {**counts, "fingerprint": content.hexdigest()}
