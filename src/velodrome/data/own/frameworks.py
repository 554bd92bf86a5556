"""Recognises data set objects of PyTorch, TensorFlow and Hugging Face, without importing any of them.

Whoever returns such an object has imported its framework. What is small is read into arrays, which keeps every promise.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.data.budget import memory_budget
from velodrome.data.examples import TARGET
from velodrome.data.own.items import TARGET_NAMES, Item, item_of
from velodrome.data.own.sources import whole_stream
from velodrome.errors import BadRequest
from velodrome.printable import shown

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


def tensorflow_arrays(name: str, dataset: Any) -> ArraysOf | None:
    """A `tf.data.Dataset` as arrays; None if it takes too much memory."""
    dataset = _unbatched(dataset)
    if int(dataset.cardinality()) == -1:
        raise BadRequest(f"--dataset {name!r}: the tf.data.Dataset never ends: leave out repeat(), or add take(n)")
    most, size = memory_budget(_SHARE), 0
    items: list[Item] = []
    for value in whole_stream(name, dataset.as_numpy_iterator):
        item = item_of(name, f"item {len(items)}", value)
        items.append(item)
        size += sum(array.nbytes + _EACH for array in (*item.inputs.values(), *item.targets.values()))
        if size > most:
            return None
    if not items:
        raise BadRequest(f"--dataset {name!r}: the tf.data.Dataset has no examples")
    return _stacked(name, items)


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


def _stacked(name: str, items: list[Item]) -> ArraysOf:
    try:
        inputs = {one: np.stack([item.inputs[one] for item in items]) for one in items[0].inputs}
        targets = {one: np.stack([item.targets[one] for item in items]) for one in items[0].targets}
    except (ValueError, KeyError):
        raise BadRequest(
            f"--dataset {name!r}: the examples are not all of one shape; pad or crop them before they are returned"
        ) from None
    return ArraysOf(inputs, targets)


# -- Hugging Face


def target_column(name: str, dataset: Any) -> str:
    column = next((one for one in TARGET_NAMES if one in dataset.column_names), None)
    if column is None:
        raise BadRequest(
            f"--dataset {name!r}: the data set has the columns {', '.join(map(shown, dataset.column_names))}, and none "
            "is a target: rename one to 'label' with rename_column()"
        )
    return column


def hugging_face_names(dataset: Any, column: str) -> tuple[str, ...]:
    """Names of the classes of a column, if it is one of class labels."""
    return tuple(getattr(dataset.features.get(column), "names", ()) or ())


def hugging_face_arrays(name: str, dataset: Any) -> ArraysOf | None:
    """A `datasets.Dataset` as arrays; None if it takes too much memory, or is decoded or transformed when read."""
    target = target_column(name, dataset)
    made = dataset.format["type"] == "custom" or any(
        type(feature).__name__ in ("Image", "Audio", "Video") for feature in dataset.features.values()
    )
    if made or dataset.data.nbytes > memory_budget(_SHARE):
        return None
    columns = dataset.with_format("numpy")[:]
    for one, array in columns.items():
        if array.dtype.kind not in "buif" and not (one == target and array.dtype.kind == "U"):
            why = "rows of different lengths: pad them" if array.dtype.kind == "O" else (
                "text: turn it into numbers with map(), or leave it out with remove_columns()"
            )
            raise BadRequest(f"--dataset {name!r}: column {shown(one)!r} holds {why}")
    inputs = {one: array for one, array in columns.items() if one != target}
    if not inputs:
        raise BadRequest(f"--dataset {name!r}: the data set has no column besides {target!r}")
    return ArraysOf(inputs, {TARGET: columns[target]}, hugging_face_names(dataset, target))
