"""Data set objects of users that are read example by example: by index, or from front to back.

An example, such as an item of a PyTorch `Dataset` or a row of Hugging Face `datasets`, is a pair of input and target,
either of them possibly a dictionary, or one dictionary with a target among it. Indices come from the schedule, so a
source with random access trains on exactly the examples, in exactly the order, that arrays in memory would. A stream is
read in its own order, and a worker skips what belongs to others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome.data.base import ItemFailed, NDArray, ReadingFailed, WrongData, naming, np
from velodrome.data.examples import INPUT, TARGET, ArrayField, ComputedPart, Named
from velodrome.errors import UserCodeError, VelodromeError, raised, shown

#: What the target of a dictionary is called, the first one that it has.
TARGET_NAMES = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True)
class Item:
    """The arrays of one example by name; a target may be a word."""

    inputs: Mapping[str, NDArray[Any]]
    targets: Mapping[str, NDArray[Any]]


def item_of(where: str, value: Any) -> Item:
    """An item as arrays; `where` is what it is called in a sentence, such as `item 3`."""
    inputs, targets = _sides(where, value)
    return Item(
        {column: _array(f"{where}, {column!r}", cell) for column, cell in inputs.items()},
        {column: _array(f"{where}, {column!r}", cell, words=True) for column, cell in targets.items()},
    )


def _sides(where: str, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(value, Mapping):
        target = next((column for column in TARGET_NAMES if column in value), None)
        if target is None or len(value) < 2:
            raise WrongData(
                f"{where} is a dictionary of {', '.join(map(shown, value)) or 'nothing'}, without "
                f"a target: call it 'label' or 'target', or return pairs of input and target"
            )
        return {str(column): cell for column, cell in value.items() if column != target}, {TARGET: value[target]}
    if not isinstance(value, tuple | list) or len(value) != 2:
        many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise WrongData(
            f"{where} is {type(value).__name__}{many}, but examples are pairs of input and target, or dictionaries"
        )
    sides = []
    for cell, only in zip(value, (INPUT, TARGET), strict=True):
        named = isinstance(cell, Mapping)
        sides.append({str(column): inner for column, inner in cell.items()} if named else {only: cell})
    if twice := [column for column in sides[0] if column in sides[1]]:
        raise WrongData(f"{twice[0]!r} names both an input and a target; rename one")
    return sides[0], sides[1]


def _array(what: str, cell: Any, *, words: bool = False) -> NDArray[Any]:
    if hasattr(cell, "detach"):  # a tensor of PyTorch, which may be part of a graph or on another device
        cell = cell.detach().cpu()
    try:
        array: NDArray[Any] = np.asarray(cell)
    except (ValueError, TypeError):
        array = np.asarray(None)
    if array.dtype.kind == "S" and words:
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind not in "buif" and not (words and array.dtype.kind == "U" and array.ndim == 0):
        hint = "; turn text into numbers first" if array.dtype.kind in "US" else ""
        raise WrongData(f"{what} is {type(cell).__name__}, but examples are numbers{hint}")
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
    return tuple(ArrayField(column, array.shape, stored_dtype(array).name) for column, array in item.inputs.items())


def target_fields(item: Item) -> tuple[ArrayField, ...]:
    return tuple(ArrayField(column, array.shape, target_dtype(array).name) for column, array in item.targets.items())


#: A longer stream counts as endless.
MOST_STREAMED = 1 << 28


class MapSource:
    """A data set with `__len__` and `__getitem__`. One thread reads it, so it need not be safe for several."""

    #: Whether positions must be asked for in rising order.
    in_order = False

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._length = self._count()

    def _count(self) -> int:
        try:
            return len(self._dataset)
        except Exception as error:
            raise ReadingFailed(f"the length of what the function returned is not known: {raised(error)}") from error

    def __len__(self) -> int:
        return self._length

    def again(self) -> MapSource:
        """The same examples for another reader."""
        return self

    def read(self, positions: Sequence[int]) -> list[Item]:
        if changed := self._changed():
            raise ItemFailed(changed)
        return [item_of(f"item {position}", self._item(position)) for position in positions]

    def _changed(self) -> str:
        """The reason why a data set of another length cannot be read; empty if it has that of the beginning."""
        now = self._count()
        return "" if now == self._length else (
            f"the data set had {self._length:,} examples when training began and has {now:,} now{self._place()}; its "
            "length must not change"
        )

    def _place(self) -> str:
        """Where the user's `__len__` begins, as a part of a sentence; empty if that cannot be found."""
        code = getattr(getattr(type(self._dataset), "__len__", None), "__code__", None)
        return "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"

    def _item(self, position: int) -> Any:
        try:
            return self._dataset[position]
        except VelodromeError:
            raise
        except Exception as error:
            why = f"reading item {position} of {self._length:,} failed: {raised(error)}"
            raise ReadingFailed(self._changed() or why) from error


class StreamSource:
    """A data set that can only be iterated over: positions must be asked for in rising order, and begin anew."""

    in_order = True

    def __init__(self, iterate: Callable[[], Iterator[Any]], length: int) -> None:
        self._iterate, self._length = iterate, length
        self._items, self._next = iter(()), 0

    def __len__(self) -> int:
        return self._length

    def again(self) -> StreamSource:
        """The same stream with an iteration of its own."""
        return StreamSource(self._iterate, self._length)

    def read(self, positions: Sequence[int]) -> list[Item]:
        if not self._next or (positions and positions[0] < self._next):
            self._items, self._next = _begun(self._iterate), 0
        items = []
        for position in positions:
            value = None
            while self._next <= position:
                value = self._advance()
                self._next += 1
            items.append(item_of(f"item {position}", value))
        return items

    def _advance(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise ItemFailed(
                f"the stream had {self._length:,} examples when training began and ended "
                f"after {self._next:,} now; its length must not change"
            ) from None
        except Exception as error:
            raise _stream_failed(self._next, error) from error


def _begun(iterate: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    try:
        return iterate()
    except Exception as error:
        raise _stream_failed(0, error) from error


def _stream_failed(position: int, error: Exception) -> UserCodeError:
    return ReadingFailed(f"reading item {position} of the stream failed: {raised(error)}")


def whole_stream(iterate: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """What a stream yields, from front to back; what it raises is an error of the user's code."""
    items, count = _begun(iterate), 0
    while True:
        try:
            value = next(items)
        except StopIteration:
            return
        except Exception as error:
            raise _stream_failed(count, error) from error
        yield value
        count += 1


def count_stream(iterate: Callable[[], Iterator[Any]], look: Callable[[int, Item], None]) -> int:
    """How many examples a stream has, by reading it once; `look` sees each of them."""
    count = 0
    for value in whole_stream(iterate):
        look(count, item_of(f"item {count}", value))
        count += 1
        if count > MOST_STREAMED:
            raise WrongData(f"the stream has more than {MOST_STREAMED:,} examples, or does not end: end it sooner")
    return count


@dataclass(frozen=True)
class SourcePart(ComputedPart):
    """Some examples of a source, read when they are asked for."""

    name: str = ""
    source: MapSource | StreamSource = field(default_factory=lambda: MapSource(()))
    #: Their positions in the source.
    positions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    #: What the first example has, and every other one must have.
    expected_inputs: tuple[ArrayField, ...] = ()
    expected_targets: tuple[ArrayField, ...] = ()
    #: Classes by word, where targets are words.
    words: Mapping[str, int] = field(default_factory=dict)
    #: How many classes the only target has, 0 if it is none.
    classes: int = 0
    #: A prefetching thread and an evaluation may ask at the same time; users' objects are not safe for that.
    lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def input_fields(self) -> tuple[ArrayField, ...]:
        return self.expected_inputs

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        return self.expected_targets

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        chosen = self.positions[indices].tolist()
        with naming(self.name):
            with self.lock:
                items = self.source.read(chosen)
            inputs = self._columns(self.expected_inputs, [item.inputs for item in items], chosen)
            targets = self._columns(self.expected_targets, [item.targets for item in items], chosen)
        return inputs, targets

    def _columns(
        self, columns: Sequence[ArrayField], items: Sequence[Mapping[str, NDArray[Any]]], positions: Sequence[int]
    ) -> Named:
        return {column.name: self._stacked(column, [item.get(column.name) for item in items], positions)
                for column in columns}

    def _stacked(
        self, column: ArrayField, cells: Sequence[NDArray[Any] | None], positions: Sequence[int]
    ) -> NDArray[Any]:
        out = np.empty((len(cells), *column.shape), column.dtype)
        for row, (cell, position) in enumerate(zip(cells, positions, strict=True)):
            if cell is None or cell.shape != column.shape:
                what = "is missing" if cell is None else f"has the shape {cell.shape}"
                raise ItemFailed(
                    f"{column.name!r} of item {position} {what}, and that of the first item "
                    f"has {column.shape}; make them alike"
                )
            if cell.dtype.kind == "U":
                cell = np.asarray(self.words.get(str(cell), -1))
            elif cell.dtype.kind == "f" and (column.is_whole or not np.isfinite(cell).all()):
                why = "is not whole" if column.is_whole else "has NaN or infinity"
                raise ItemFailed(f"{column.name!r} of item {position} {why}; repair it")
            out[row] = cell
            if self.classes and column in self.expected_targets and not 0 <= out[row] < self.classes:
                raise ItemFailed(
                    f"the class of item {position} is {cell}, and there are {self.classes:,}, counted from 0"
                )
        return out
