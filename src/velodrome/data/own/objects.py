"""Data set objects of PyTorch, TensorFlow and Hugging Face, recognized without importing any of them.

Whoever returns such an object has imported its framework. What is small is read into arrays, which keeps every promise;
the others are parts that are read when they are needed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from velodrome.data.base import NDArray, WrongData, memory_budget, np
from velodrome.data.examples import TARGET, ExampleSet
from velodrome.data.own.reading import (
    TARGET_NAMES,
    Item,
    MapSource,
    SourcePart,
    StreamSource,
    count_stream,
    input_fields,
    is_image,
    item_of,
    target_fields,
    whole_stream,
)
from velodrome.data.split import PARTS, TEST, TRAIN, VALIDATION, divide
from velodrome.errors import shown

Kind = Literal["map", "stream", "tensorflow", "hugging-face"]
#: The share of a worker's memory that a data set may take to be read into arrays.
_SHARE = 1 / 8
#: What Python needs in addition to the bytes of an example, roughly.
_EACH = 300


@dataclass(frozen=True)
class ArraysOf:
    """A data set read into arrays: inputs and targets by name, and the names of its classes if it has some."""

    inputs: Mapping[str, NDArray[Any]]
    targets: Mapping[str, NDArray[Any]]
    class_names: tuple[str, ...] = ()


def kind_of(value: Any) -> Kind | None:
    """How a data set object is read; None for arrays, lists, generators and everything else."""
    bases = [(kind.__module__ or "", kind.__name__) for kind in type(value).__mro__]
    if any(module.startswith("tensorflow.") and name == "DatasetV2" for module, name in bases):
        return "tensorflow"
    if any(module.startswith("datasets.") and name == "IterableDataset" for module, name in bases):
        return "stream"
    if any(module.startswith("datasets.") and name == "Dataset" for module, name in bases):
        return "hugging-face"
    if any(module.startswith("torch.utils.data.") and name == "IterableDataset" for module, name in bases):
        return "stream"
    if any(module.startswith("torch.utils.data.") and name == "Dataset" for module, name in bases):
        return "map"
    plain = isinstance(value, list | tuple | str | bytes | Mapping | range) or hasattr(value, "__array__")
    return "map" if not plain and hasattr(value, "__getitem__") and hasattr(value, "__len__") else None


def seed_all(seed: int) -> None:
    """Seed every generator that a data function may draw from: all workers must get the same examples."""
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(seed)


def iterator_of(value: Any) -> Callable[[], Iterator[Any]]:
    """A function that begins an iteration over a stream."""
    if kind_of(value) == "tensorflow":
        return lambda: iter(_unbatched(value).as_numpy_iterator())
    return lambda: iter(value)


# -- TensorFlow


def tensorflow_arrays(dataset: Any) -> ArraysOf | None:
    """A `tf.data.Dataset` as arrays; None if it takes too much memory."""
    dataset = _unbatched(dataset)
    if int(dataset.cardinality()) == -1:
        raise WrongData("the tf.data.Dataset never ends: leave out repeat(), or add take(n)")
    most, size = memory_budget(_SHARE), 0
    items: list[Item] = []
    for value in whole_stream(dataset.as_numpy_iterator):
        item = item_of(f"item {len(items)}", value)
        items.append(item)
        size += sum(array.nbytes + _EACH for array in (*item.inputs.values(), *item.targets.values()))
        if size > most:
            return None
    if not items:
        raise WrongData("the tf.data.Dataset has no examples")
    return _stacked(items)


def _unbatched(dataset: Any) -> Any:
    """Single examples of a data set that yields batches: the first axis of everything in it has no fixed length, or it
    ends in batch() with batches of one size."""
    flatten = sys.modules["tensorflow"].nest.flatten  # whoever made the data set has imported it
    shapes = [spec.shape for spec in flatten(dataset.element_spec)]
    batched = all(shape.rank and shape[0] is None for shape in shapes) or _ends_in_batch(dataset)
    return dataset.unbatch() if batched else dataset


def _ends_in_batch(dataset: Any) -> bool:
    """Whether the last step that changes what a `tf.data.Dataset` yields is batch(). TensorFlow tells its steps by
    private names only; where they are others, the answer is no."""
    while any(kind.__name__ == "UnaryUnchangedStructureDataset" for kind in type(dataset).__mro__):
        (dataset,) = getattr(dataset, "_inputs", lambda: (None,))()
    return type(dataset).__name__ in ("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset")


def _stacked(items: list[Item]) -> ArraysOf:
    try:
        inputs = {column: np.stack([item.inputs[column] for item in items]) for column in items[0].inputs}
        targets = {column: np.stack([item.targets[column] for item in items]) for column in items[0].targets}
    except (ValueError, KeyError):
        raise WrongData("the examples are not all of one shape; pad or crop them before they are returned") from None
    return ArraysOf(inputs, targets)


# -- Hugging Face


def target_column(dataset: Any) -> str:
    column = next((word for word in TARGET_NAMES if word in dataset.column_names), None)
    if column is None:
        raise WrongData(
            f"the data set has the columns {', '.join(map(shown, dataset.column_names))}, and none "
            "is a target: rename one to 'label' with rename_column()"
        )
    return column


def hugging_face_names(dataset: Any, column: str) -> tuple[str, ...]:
    """Names of the classes of a column, if it is one of class labels."""
    return tuple(getattr(dataset.features.get(column), "names", ()) or ())


def hugging_face_arrays(dataset: Any) -> ArraysOf | None:
    """A `datasets.Dataset` as arrays; None if it takes too much memory, or is decoded or transformed when read."""
    target = target_column(dataset)
    made = dataset.format["type"] == "custom" or any(
        type(feature).__name__ in ("Image", "Audio", "Video") for feature in dataset.features.values()
    )
    if made or dataset.data.nbytes > memory_budget(_SHARE):
        return None
    columns = dataset.with_format("numpy")[:]
    for column, array in columns.items():
        if array.dtype.kind not in "buif" and not (column == target and array.dtype.kind == "U"):
            why = "rows of different lengths: pad them" if array.dtype.kind == "O" else (
                "text: turn it into numbers with map(), or leave it out with remove_columns()"
            )
            raise WrongData(f"column {shown(column)!r} holds {why}")
    inputs = {column: array for column, array in columns.items() if column != target}
    if not inputs:
        raise WrongData(f"the data set has no column besides {target!r}")
    return ArraysOf(inputs, {TARGET: columns[target]}, hugging_face_names(dataset, target))


#: Examples that are read at a time to count the classes.
_WINDOW = 256


@dataclass(frozen=True)
class _Counted:
    """One data set object, looked through as far as needed."""

    source: MapSource | StreamSource
    first: Item
    #: The target of each example, where it is one word or whole number.
    targets: list[Any] | None
    class_names: tuple[str, ...] = ()
    #: Whether every example was read to find its target.
    read: bool = False


def source_data(name: str, objects: Mapping[int, Any], seed: int, validation: float) -> ExampleSet:
    """The data as parts that are read when they are needed; what is missing is drawn from training."""
    counted = {which: _counted(value) for which, value in objects.items()}
    train = counted[TRAIN]
    targets = [each for which in sorted(counted) for each in counted[which].targets or ()]
    classes, words = _classes(train, targets)
    sizes = {which: len(counted[which].source) for which in sorted(counted)}
    parts = np.concatenate([np.full(size, which, np.int8) for which, size in sizes.items()])
    labels = np.array([words.get(str(each), -1) if words else each for each in targets], np.int64)
    if not classes:
        labels = np.zeros(len(parts), np.int64)
    elif labels.min() < 0 or labels.max() >= classes:
        raise WrongData(
            f"targets are from {labels.min()} to {labels.max()}, and classes are counted from 0 up "
            f"to {classes - 1}, those that training has"
        )
    begins = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    chosen = dict(zip((TRAIN, VALIDATION, TEST), divide(labels, parts, seed, validation), strict=True))
    made = []
    for which, places in chosen.items():
        given = counted.get(which, train)
        source = given.source.again()
        made.append(SourcePart(
            {}, {}, name, source, places - int(begins[which if which in counted else TRAIN]),
            input_fields(train.first), target_fields(train.first), words, classes,
        ))
    streams = any(each.source.in_order for each in counted.values())
    fields = input_fields(train.first)
    return ExampleSet(
        name, made[0], made[1], made[2], classes=classes or None, class_names=_names(train, classes, words),
        images=frozenset(each.name for each in fields if is_image(each.shape)), notes=_notes(name, counted),
        caveats=_caveats(name) if streams else (), in_order=streams,
    )


def _counted(value: Any) -> _Counted:
    kind = kind_of(value)
    if kind in ("stream", "tensorflow"):
        return _counted_stream(value)
    names: tuple[str, ...] = tuple(map(str, getattr(value, "classes", ()) or ()))
    known = None
    if kind == "hugging-face":
        column = target_column(value)
        names, known = hugging_face_names(value, column), np.asarray(value.with_format("numpy")[column][:])
    source = MapSource(value)
    if not len(source):
        raise WrongData("the data set has no examples")
    first = source.read([0])[0]
    if not _is_class(first):
        return _Counted(source, first, None)
    for attribute in ("targets", "labels"):
        if known is None and (labels := getattr(value, attribute, None)) is not None and len(labels) == len(source):
            known = np.asarray(labels)
    if known is not None and known.ndim == 1 and known.dtype.kind in "buiU":
        return _Counted(source, first, known.tolist(), names)
    targets: list[Any] = []
    for begin in range(0, len(source), _WINDOW):
        items = source.read(range(begin, min(begin + _WINDOW, len(source))))
        targets += [_target(begin + row, item) for row, item in enumerate(items)]
    return _Counted(source, first, targets, names, read=True)


def _counted_stream(value: Any) -> _Counted:
    """A stream is read once: its length is part of the schedule."""
    first: list[Item] = []
    targets: list[Any] = []

    def look(place: int, item: Item) -> None:
        if not place:
            first.append(item)
        if _is_class(first[0]):
            targets.append(_target(place, item))

    iterate = iterator_of(value)
    length = count_stream(iterate, look)
    if not length:
        raise WrongData("the stream has no examples")
    return _Counted(StreamSource(iterate, length), first[0], targets if _is_class(first[0]) else None, read=True)


def _is_class(item: Item) -> bool:
    """Whether the target is one word or whole number."""
    targets = [*item.targets.values()]
    return len(targets) == 1 and targets[0].ndim == 0 and targets[0].dtype.kind in "buiU"


def _target(place: int, item: Item) -> Any:
    if not _is_class(item):
        raise WrongData(f"the target of item {place} is not one class, as that of item 0 is")
    (target,) = item.targets.values()
    return target.item()


def _classes(train: _Counted, targets: list[Any]) -> tuple[int, dict[str, int]]:
    """How many classes there are (0 if the target is not a class), and the number of each word."""
    if train.targets is None:
        return 0, {}
    if any(isinstance(target, str) for target in targets):
        words = {word: place for place, word in enumerate(sorted({str(target) for target in train.targets}))}
        count = len(words)
    else:
        words, count = {}, max(len(train.class_names), max(map(int, train.targets)) + 1)
    if count < 2:
        raise WrongData(f"it has {count} classes, but training needs two")
    return count, words


def _names(train: _Counted, classes: int, words: Mapping[str, int]) -> tuple[str, ...]:
    if words:
        return tuple(words)
    return train.class_names if len(train.class_names) == classes else tuple(map(str, range(classes)))


def _notes(name: str, counted: Mapping[int, _Counted]) -> tuple[str, ...]:
    read = [which for which, each in counted.items() if each.read and not each.source.in_order]
    if not read:
        return ()
    parts = " and ".join(PARTS[which] for which in read)
    return (
        f"every example of {name!r} ({parts}) was read once to find its class; an attribute `targets` of the data set "
        "saves that",
    )


def _caveats(name: str) -> tuple[str, ...]:
    return (
        f"{name!r} is a stream, which has no random access: its examples come in its own order, which --seed does not "
        "shuffle, and each worker reads all of it and trains on every n-th example; equal results for other numbers of "
        "workers, and after a resume, are promised only if it yields the same examples in the same order every time",
    )
