"""Data set objects as the parts of a data set: how many examples, which classes, and who reads which of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from velodrome.data.examples import ExampleSet
from velodrome.data.images.cached_set import TEST, TRAIN, VALIDATION, divide
from velodrome.data.own.frameworks import hugging_face_names, iterator_of, kind_of, target_column
from velodrome.data.own.items import Item, input_fields, is_image, target_fields
from velodrome.data.own.sources import MapSource, SourcePart, StreamSource, count_stream
from velodrome.errors import BadRequest

_PARTS = {TRAIN: "train", VALIDATION: "validation", TEST: "test"}
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
    counted = {which: _counted(name, value) for which, value in objects.items()}
    train = counted[TRAIN]
    targets = [one for which in sorted(counted) for one in counted[which].targets or ()]
    classes, words = _classes(name, train, targets)
    sizes = {which: len(counted[which].source) for which in sorted(counted)}
    parts = np.concatenate([np.full(size, which, np.int8) for which, size in sizes.items()])
    labels = np.array([words.get(str(one), -1) if words else one for one in targets], np.int64)
    if not classes:
        labels = np.zeros(len(parts), np.int64)
    elif labels.min() < 0 or labels.max() >= classes:
        raise BadRequest(
            f"--dataset {name!r}: targets are from {labels.min()} to {labels.max()}, and classes are counted from 0 up "
            f"to {classes - 1}, those that training has"
        )
    begins = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    chosen = dict(zip((TRAIN, VALIDATION, TEST), divide(labels, parts, seed, validation), strict=True))
    made = []
    for which, places in chosen.items():
        given = counted.get(which, train)
        source = given.source if isinstance(given.source, MapSource) else given.source.again()
        made.append(SourcePart(
            {}, {}, name, source, places - int(begins[which if which in counted else TRAIN]),
            input_fields(train.first), target_fields(train.first), words, classes,
        ))
    streams = any(isinstance(one.source, StreamSource) for one in counted.values())
    fields = input_fields(train.first)
    return ExampleSet(
        name, made[0], made[1], made[2], classes=classes or None, class_names=_names(train, classes, words),
        images=frozenset(one.name for one in fields if is_image(one.shape)), notes=_notes(name, counted),
        caveats=_caveats(name) if streams else (), in_order=streams,
    )


def _counted(name: str, value: Any) -> _Counted:
    kind = kind_of(value)
    if kind in ("stream", "tensorflow"):
        return _counted_stream(name, value)
    names: tuple[str, ...] = tuple(map(str, getattr(value, "classes", ()) or ()))
    known = None
    if kind == "hugging-face":
        column = target_column(name, value)
        names, known = hugging_face_names(value, column), np.asarray(value.with_format("numpy")[column][:])
    source = MapSource(name, value)
    if not len(source):
        raise BadRequest(f"--dataset {name!r}: the data set has no examples")
    first = source.read([0])[0]
    if not _is_class(first):
        return _Counted(source, first, None)
    for attribute in ("targets", "labels"):
        if known is None and (found := getattr(value, attribute, None)) is not None and len(found) == len(source):
            known = np.asarray(found)
    if known is not None and known.ndim == 1 and known.dtype.kind in "buiU":
        return _Counted(source, first, known.tolist(), names)
    targets: list[Any] = []
    for begin in range(0, len(source), _WINDOW):
        items = source.read(range(begin, min(begin + _WINDOW, len(source))))
        targets += [_target(name, begin + row, item) for row, item in enumerate(items)]
    return _Counted(source, first, targets, names, read=True)


def _counted_stream(name: str, value: Any) -> _Counted:
    """A stream is read once: its length is part of the schedule."""
    first: list[Item] = []
    targets: list[Any] = []

    def look(place: int, item: Item) -> None:
        if not place:
            first.append(item)
        if _is_class(first[0]):
            targets.append(_target(name, place, item))

    iterate = iterator_of(value)
    length = count_stream(name, iterate, look)
    if not length:
        raise BadRequest(f"--dataset {name!r}: the stream has no examples")
    return _Counted(StreamSource(name, iterate, length), first[0], targets if _is_class(first[0]) else None, read=True)


def _is_class(item: Item) -> bool:
    """Whether the target is one word or whole number."""
    targets = [*item.targets.values()]
    return len(targets) == 1 and targets[0].ndim == 0 and targets[0].dtype.kind in "buiU"


def _target(name: str, place: int, item: Item) -> Any:
    if not _is_class(item):
        raise BadRequest(f"--dataset {name!r}: the target of item {place} is not one class, as that of item 0 is")
    (target,) = item.targets.values()
    return target.item()


def _classes(name: str, train: _Counted, targets: list[Any]) -> tuple[int, dict[str, int]]:
    """How many classes there are, 0 if the target is none, and the place of each word."""
    if train.targets is None:
        return 0, {}
    if any(isinstance(one, str) for one in targets):
        words = {word: place for place, word in enumerate(sorted({str(one) for one in train.targets}))}
        count = len(words)
    else:
        words, count = {}, max(len(train.class_names), max(map(int, train.targets)) + 1)
    if count < 2:
        raise BadRequest(f"--dataset {name!r} has {count} classes, and training needs two")
    return count, words


def _names(train: _Counted, classes: int, words: Mapping[str, int]) -> tuple[str, ...]:
    if words:
        return tuple(words)
    return train.class_names if len(train.class_names) == classes else tuple(map(str, range(classes)))


def _notes(name: str, counted: Mapping[int, _Counted]) -> tuple[str, ...]:
    read = [which for which, one in counted.items() if one.read and isinstance(one.source, MapSource)]
    if not read:
        return ()
    parts = " and ".join(_PARTS[which] for which in read)
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

