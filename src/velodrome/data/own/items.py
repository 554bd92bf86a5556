"""One example of a user's data set object, such as a PyTorch `Dataset` or a row of Hugging Face `datasets`, as arrays.

An item is a pair of input and target, either of them possibly a dictionary, or one dictionary with a target among it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import INPUT, TARGET, ArrayField
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: What the target of a dictionary is called, the first one that it has.
TARGET_NAMES = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True)
class Item:
    """The arrays of one example by name; a target may be a word."""

    inputs: Mapping[str, NDArray[Any]]
    targets: Mapping[str, NDArray[Any]]


def item_of(name: str, where: str, value: Any) -> Item:
    """An item as arrays; `where` is what it is called in a sentence, such as `item 3`."""
    inputs, targets = _sides(name, where, value)
    return Item(
        {one: _array(name, f"{where}, {one!r}", cell) for one, cell in inputs.items()},
        {one: _array(name, f"{where}, {one!r}", cell, words=True) for one, cell in targets.items()},
    )


def _sides(name: str, where: str, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(value, Mapping):
        target = next((one for one in TARGET_NAMES if one in value), None)
        if target is None or len(value) < 2:
            raise BadRequest(
                f"--dataset {name!r}: {where} is a dictionary of {', '.join(map(shown, value)) or 'nothing'}, without "
                f"a target: call it 'label' or 'target', or return pairs of input and target"
            )
        return {str(one): cell for one, cell in value.items() if one != target}, {TARGET: value[target]}
    if not isinstance(value, tuple | list) or len(value) != 2:
        many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise BadRequest(
            f"--dataset {name!r}: {where} is {type(value).__name__}{many}, and examples are pairs of input and target, "
            "or dictionaries"
        )
    sides = []
    for cell, only in zip(value, (INPUT, TARGET), strict=True):
        sides.append({str(one): inner for one, inner in cell.items()} if isinstance(cell, Mapping) else {only: cell})
    if twice := [one for one in sides[0] if one in sides[1]]:
        raise BadRequest(f"--dataset {name!r}: {twice[0]!r} names both an input and a target; rename one")
    return sides[0], sides[1]


def _array(name: str, what: str, cell: Any, *, words: bool = False) -> NDArray[Any]:
    if hasattr(cell, "detach"):  # a tensor of PyTorch, which may be part of a graph or on another device
        cell = cell.detach().cpu()
    try:
        array: NDArray[Any] = np.asarray(cell)
    except (ValueError, TypeError):
        array = np.asarray(None)
    if array.dtype.kind == "S" and words:
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind not in "buif" and not (words and array.dtype.kind == "U" and array.ndim == 0):
        way_out = "; turn text into numbers first" if array.dtype.kind in "US" else ""
        raise BadRequest(f"--dataset {name!r}: {what} is {type(cell).__name__}, and examples are numbers{way_out}")
    return array


def stored_dtype(array: NDArray[Any]) -> np.dtype[Any]:
    """The type an input is kept in: fractions float32, images of bytes as bytes, other whole numbers int64."""
    if array.dtype.kind == "f":
        return np.dtype(np.float32)
    if array.dtype == np.uint8 and array.ndim >= 2:
        # Bytes with channels first are an image whose engine expects fractions; they are not scaled.
        return np.dtype(np.uint8) if is_image(array.shape) else np.dtype(np.float32)
    return np.dtype(np.int64)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether one example has the shape (height, width, channels)."""
    return len(shape) == 3 and 1 <= shape[2] <= 4


def target_dtype(array: NDArray[Any]) -> np.dtype[Any]:
    """Fractions float32, words and whole numbers int64."""
    return np.dtype(np.float32 if array.dtype.kind == "f" else np.int64)


def input_fields(item: Item) -> tuple[ArrayField, ...]:
    return tuple(ArrayField(one, array.shape, stored_dtype(array).name) for one, array in item.inputs.items())


def target_fields(item: Item) -> tuple[ArrayField, ...]:
    return tuple(ArrayField(one, array.shape, target_dtype(array).name) for one, array in item.targets.items())
