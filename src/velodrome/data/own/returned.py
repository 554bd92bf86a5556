"""Sorts what a user's function returned: arrays, single examples, or data set objects, in up to three parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from velodrome.data.bad_data import Faults
from velodrome.data.examples import INPUT, TARGET
from velodrome.data.images.arrays import NAMES
from velodrome.data.images.cached_set import TEST, TRAIN, VALIDATION
from velodrome.data.images.folders import PART_NAMES
from velodrome.data.own.frameworks import ArraysOf, hugging_face_arrays, kind_of, tensorflow_arrays
from velodrome.data.own.iterables import gathered
from velodrome.errors import BadRequest
from velodrome.printable import shown

_FOUR = ("x_train", "y_train", "x_test", "y_test")
_PARTS = {TRAIN: "train", VALIDATION: "validation", TEST: "test"}
_FORMS = (
    "return x_train, y_train, x_test, y_test, a dictionary with these names, an iterable of (input, target), or data "
    "set objects of PyTorch, TensorFlow or Hugging Face"
)


@dataclass(frozen=True)
class Returned:
    """Either arrays by name, `x_train` and so on, or data set objects by part."""

    arrays: Mapping[str, Any] | None = None
    objects: Mapping[int, Any] = field(default_factory=dict)
    #: Where the data names its classes.
    class_names: tuple[str, ...] = ()


def sorted_out(name: str, returned: Any, faults: Faults) -> Returned:
    """What the function returned, by part."""
    objects = _objects(name, returned)
    if objects:
        return _in_memory(name, objects) or Returned(objects=objects)
    if isinstance(returned, Mapping):
        return Returned(arrays=_by_part(returned))
    if isinstance(returned, tuple) and len(returned) == 4:
        return Returned(arrays=dict(zip(_FOUR, returned, strict=True)))
    if isinstance(returned, tuple) and len(returned) == 2:
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in returned):
            return Returned(arrays=dict(zip(_FOUR, (*returned[0], *returned[1]), strict=True)))
        return Returned(arrays=dict(zip(_FOUR, returned, strict=False)))
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise BadRequest(f"--dataset {name!r}: the function returned {type(returned).__name__}; {_FORMS}")
    return Returned(arrays=gathered(name, returned, faults))


def _by_part(returned: Mapping[str, Any]) -> Mapping[str, Any]:
    """`{"train": (x, y), "test": (x, y)}` as arrays by name; other dictionaries as they are."""
    if any(key in NAMES for key in returned) or not returned or not all(_which(key) is not None for key in returned):
        return returned
    found: dict[str, Any] = {}
    for key, pair in returned.items():
        which = _which(key)
        if which is None or not isinstance(pair, tuple | list) or len(pair) != 2:
            return returned
        found[f"x_{_PARTS[which]}"], found[f"y_{_PARTS[which]}"] = pair
    return found


def _which(key: object) -> int | None:
    return PART_NAMES.get(key.lower()) if isinstance(key, str) else None


def _objects(name: str, returned: Any) -> dict[int, Any]:
    """Data set objects by part; empty if it is something else."""
    if kind_of(returned) is not None:
        return {TRAIN: returned}
    if isinstance(returned, tuple) and len(returned) in (2, 3) and all(kind_of(one) for one in returned):
        return dict(zip((TRAIN, TEST) if len(returned) == 2 else (TRAIN, VALIDATION, TEST), returned, strict=True))
    if not isinstance(returned, Mapping) or not returned or not all(kind_of(one) for one in returned.values()):
        return {}
    found: dict[int, Any] = {}
    for key, one in returned.items():
        which = _which(key)
        if which is None or which in found:
            raise BadRequest(
                f"--dataset {name!r}: the function returned data sets called {', '.join(map(shown, returned))}; call "
                "them train, validation and test"
            )
        found[which] = one
    if TRAIN not in found:
        raise BadRequest(f"--dataset {name!r}: the function returned no data set called 'train'")
    return found


def _in_memory(name: str, objects: Mapping[int, Any]) -> Returned | None:
    """The data sets as arrays, if each can be and fits."""
    found: dict[int, ArraysOf] = {}
    for which, value in objects.items():
        kind = kind_of(value)
        if kind not in ("tensorflow", "hugging-face"):
            return None
        arrays = (tensorflow_arrays if kind == "tensorflow" else hugging_face_arrays)(name, value)
        if arrays is None:
            return None
        found[which] = arrays
    given: dict[str, Any] = {}
    for which, arrays in found.items():
        for letter, named, unnamed in (("x", arrays.inputs, INPUT), ("y", arrays.targets, TARGET)):
            given[f"{letter}_{_PARTS[which]}"] = named[unnamed] if [*named] == [unnamed] else dict(named)
    return Returned(arrays=given, class_names=found[TRAIN].class_names)


