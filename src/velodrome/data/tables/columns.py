"""A table as columns: numbers with NaN where one is missing, or categories by number with -1. No file formats here.

What is to be predicted is decided here, too: whether the target columns are numbers, classes or labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from velodrome.data.arrays import NDArray, np
from velodrome.data.base import Faults, WrongData
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: What a cell without a value holds, in small letters.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "nil", "?", "-", "#n/a", "<na>"))
#: From this share of numbers on, a cell that is not a number is a mistake.
MOSTLY = 0.9
#: Different values of a column of categories.
MOST_CATEGORIES = 65_536
#: Characters of a category.
LONGEST_CATEGORY = 1_000
#: Columns of a table; every one costs a pass over each row.
MOST_COLUMNS = 4_096

_FORMULA = "cells with a formula instead of its value (save the table with values)"


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, NaN where one is missing; or categories by their places in `names`, -1 for none."""

    #: float64, or int32.
    values: NDArray[Any]
    #: Of categories, sorted.
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_numeric(self) -> bool:
        return self.values.dtype.kind == "f"

    @property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.values) if self.is_numeric else np.asarray(self.values < 0)

    def rows(self, chosen: NDArray[Any]) -> Column:
        """Some rows, by their numbers or as a mask."""
        return Column(self.values[chosen], self.names)


@dataclass(frozen=True)
class Table:
    """Columns of equal length, and where each row is in its file: a line of text, or a row counted from 1."""

    columns: Mapping[str, Column]
    places: NDArray[np.int64]
    #: What a place is called: `line` or `row`.
    noun: str

    def __len__(self) -> int:
        return len(self.places)

    def rows(self, chosen: NDArray[np.bool_]) -> Table:
        if chosen.all():
            return self
        return Table({name: column.rows(chosen) for name, column in self.columns.items()}, self.places[chosen],
                     self.noun)

    def place(self, row: int) -> str:
        return f"{self.noun} {self.places[row]}"


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Whether a cell is a number; infinity is one, and is refused later."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


class Tally:
    """Decides from its cells whether a column is of numbers."""

    def __init__(self) -> None:
        self._numbers = self._others = 0

    def take(self, cells: Sequence[str]) -> None:
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            there = [cell for cell in cells if not is_missing(cell)]
            numeric = sum(map(is_number, there))
            self._numbers += numeric
            self._others += len(there) - numeric
        else:
            self._numbers += sum(not math.isnan(number) for number in numbers)

    @property
    def empty(self) -> bool:
        return not self._numbers + self._others

    @property
    def numeric(self) -> bool:
        return self._numbers >= MOSTLY * (self._numbers + self._others)


class NumberBuilder:
    """Collects a column of numbers, a piece at a time; a cell that is not a number is a fault."""

    def __init__(self, name: str, faults: Faults) -> None:
        self._name, self._faults = name, faults
        self._pieces: list[NDArray[np.float64]] = []
        self._sound: list[NDArray[np.bool_]] = []

    def take(self, cells: Sequence[str], places: Sequence[str]) -> None:
        try:
            values = np.array([float(cell) for cell in cells], np.float64)
            sound = np.ones(len(cells), np.bool_)
        except ValueError:
            values, sound = self._parsed(cells, places)
        self.take_typed(values, places, sound)

    def take_typed(
        self, values: NDArray[np.float64], places: Sequence[str], sound: NDArray[np.bool_] | None = None
    ) -> None:
        """As `take`, of cells that are numbers already."""
        sound = np.ones(len(values), np.bool_) if sound is None else sound
        for row in np.flatnonzero(np.isinf(values)).tolist():
            self._faults.add(f"infinite numbers in column {shown(self._name)!r}", places[row])
            sound[row] = False
        self._pieces.append(values)
        self._sound.append(sound)

    def _parsed(
        self, cells: Sequence[str], places: Sequence[str]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        values, sound = np.full(len(cells), np.nan), np.ones(len(cells), np.bool_)
        for row, cell in enumerate(cells):
            if is_missing(cell):
                continue
            try:
                values[row] = float(cell)
            except ValueError:
                sound[row] = False
                what = _FORMULA if cell.lstrip().startswith("=") else (
                    f"cells of column {shown(self._name)!r} that are not numbers like the others"
                )
                self._faults.add(what, places[row], cell)
        return values, sound

    def column(self) -> tuple[Column, NDArray[np.bool_]]:
        """The column, and which of its rows can be used."""
        if not self._pieces:
            return Column(np.zeros(0)), np.zeros(0, np.bool_)
        return Column(np.concatenate(self._pieces)), np.concatenate(self._sound)


class CategoryBuilder:
    """Collects a column of categories, a piece at a time."""

    def __init__(self, name: str, faults: Faults) -> None:
        self._name, self._faults = name, faults
        self._code_of: dict[str, int] = {}
        self._codes: list[NDArray[np.int32]] = []
        self._sound: list[NDArray[np.bool_]] = []

    def take(self, cells: Sequence[str | None], places: Sequence[str]) -> None:
        codes, sound = np.full(len(cells), -1, np.int32), np.ones(len(cells), np.bool_)
        code_of = self._code_of
        for row, cell in enumerate(cells):
            text = "" if cell is None else cell.strip()
            code = code_of.get(text)
            if code is None:
                if is_missing(text):
                    continue
                if text.startswith("=") or len(text) > LONGEST_CATEGORY:
                    what = _FORMULA if text.startswith("=") else f"cells of more than {LONGEST_CATEGORY:,} characters"
                    self._faults.add(what, places[row], text)
                    sound[row] = False
                    continue
                code = code_of[text] = len(code_of)
                if len(code_of) > MOST_CATEGORIES:
                    raise BadRequest(
                        f"column {shown(self._name)!r} has more than {MOST_CATEGORIES:,} different texts, too many for "
                        f"categories: leave it out with &ignore={self._name}, or name the columns you want with "
                        "&features="
                    )
            codes[row] = code
        self._codes.append(codes)
        self._sound.append(sound)

    take_typed = take

    def column(self) -> tuple[Column, NDArray[np.bool_]]:
        """The column with sorted names, and which of its rows can be used."""
        if not self._codes:
            return Column(np.zeros(0, np.int32)), np.zeros(0, np.bool_)
        names = sorted(self._code_of)
        ranks = np.empty(len(names) + 1, np.int32)
        ranks[[self._code_of[name] for name in names]] = np.arange(len(names), dtype=np.int32)
        ranks[-1] = -1  # what code -1 leads to
        return Column(ranks[np.concatenate(self._codes)], tuple(names)), np.concatenate(self._sound)


#: Whole numbers with at most so many different values are classes.
MOST_NUMBERED_CLASSES = 20
Task = Literal["regression", "classification", "multi-label"]


@dataclass(frozen=True)
class Targets:
    """The target columns, and the task they are for."""

    task: Task
    columns: Mapping[str, Column]
    #: How that was decided, as a sentence.
    note: str


def decide(columns: Mapping[str, Column], predict: str | None) -> Targets:
    """Words are classes; numbers are predicted unless they are whole and few; several columns of 0 and 1 are labels."""
    if len(columns) > 1:
        return _several(columns, predict)
    (head, column), = columns.items()
    if not column.is_numeric:
        if predict == "number":
            raise WrongData(f"column {shown(head)!r} holds words, and predict=number needs others")
        return Targets("classification", columns, f"{shown(head)!r} has {len(column.names)} classes")
    values = np.unique(column.values[~column.missing])
    whole = bool((values == np.floor(values)).all())
    few = len(values) <= MOST_NUMBERED_CLASSES
    if predict == "class" and not whole:
        raise WrongData(
            f"column {shown(head)!r} holds fractions such as {_fraction(values):g}, and "
            "predict=class needs words or whole numbers"
        )
    if predict == "class" or (predict is None and whole and few):
        classes = as_classes(column, values)
        how_to_change = "" if predict else "; &predict=number predicts it as a number"
        return Targets(
            "classification", {head: classes}, f"{shown(head)!r} has {len(classes.names)} classes{how_to_change}"
        )
    return Targets("regression", columns, f"{shown(head)!r} is predicted as a number")


def _several(columns: Mapping[str, Column], predict: str | None) -> Targets:
    for head, column in columns.items():
        if not column.is_numeric:
            raise WrongData(f"column {shown(head)!r} holds words, and several targets must all be numbers")
    ones = all(np.isin(column.values[~column.missing], (0, 1)).all() for column in columns.values())
    if predict == "class" and not ones:
        raise WrongData("predict=class with several targets needs columns of 0 and 1")
    names = listed(list(columns))
    if ones and predict != "number":
        return Targets("multi-label", columns, f"{names} are labels, each 0 or 1")
    return Targets("regression", columns, f"{names} are predicted as numbers")


def as_classes(column: Column, values: NDArray[np.float64]) -> Column:
    """Whole numbers as classes in the order of their size."""
    codes = np.searchsorted(values, column.values).astype(np.int32)
    codes[column.missing] = -1
    return Column(codes, tuple(f"{value:.0f}" for value in values))


def _fraction(values: NDArray[np.float64]) -> float:
    return float(values[values != np.floor(values)][0])


def listed(names: Sequence[str], most: int = 8) -> str:
    """`'a', 'b' and 3 more`."""
    some = ", ".join(repr(shown(name)) for name in names[:most])
    return some + (f" and {len(names) - most:,} more" if len(names) > most else "")
