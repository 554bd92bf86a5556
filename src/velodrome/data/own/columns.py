"""A table as columns: numbers with NaN where one is missing, or categories by number with -1. No file formats here.

Which columns of a file are wanted, and for what, follows from the options of the data set's name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from velodrome.data.base import Faults, NDArray, WrongData, np
from velodrome.data.split import part_column
from velodrome.errors import BadRequest, shown

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


def listed(names: Sequence[str], most: int = 8) -> str:
    """`'a', 'b' and 3 more`."""
    some = ", ".join(repr(shown(name)) for name in names[:most])
    return some + (f" and {len(names) - most:,} more" if len(names) > most else "")


How = Literal["onehot", "index"]


@dataclass(frozen=True)
class Request:
    """The columns of a table by what they are for."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    #: The column that divides the rows; None if they are drawn.
    part: str | None
    #: Whether the column of parts was named, so that its values must be parts.
    part_named: bool
    #: Columns whose numbers are only names.
    categorical: tuple[str, ...]
    how: How
    #: `number` or `class`; None if the values of the target decide.
    predict: str | None
    #: Whether targets of numbers are standardised as features are.
    scale_targets: bool
    #: What was decided without being asked for, as sentences.
    notes: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every column that is read."""
        return (*self.features, *self.targets, *((self.part,) if self.part else ()))


def request_of(path: Path, heads: Sequence[str], options: Mapping[str, str]) -> Request:
    """The request that the options of a data set's name make; columns that are not there are refused."""
    twice = [head for head, count in Counter(heads).items() if count > 1 and head]
    if twice:
        raise BadRequest(f"{str(path)!r} has two columns {shown(twice[0])!r}: rename one")
    targets = _columns_named(path, heads, "target", options.get("target", ""))
    if not targets:
        raise WrongData(f"name the column to predict as {path.name}?target=COLUMN")
    ignored = _columns_named(path, heads, "ignore", options.get("ignore", ""))
    part = _part(path, heads, options, targets, ignored)
    notes = []
    if "features" in options:
        features = _columns_named(path, heads, "features", options["features"])
    else:
        features = tuple(head for head in heads if head and head not in (*targets, *ignored, part))
        if "" in heads:
            notes.append("a column without a name is left out")
    for column in features:
        if column in targets or column == part:
            what = "to predict" if column in targets else "of parts"
            raise WrongData(f"column {column!r} is the one {what}, and cannot be a feature too")
        if column in ignored:
            raise WrongData(f"column {column!r} is both in features and in ignore")
    if not features:
        raise WrongData("no column is left as a feature; name some as &features=COLUMN,COLUMN")
    return Request(
        targets=targets, features=features, part=part, part_named=bool(options.get("part")),
        categorical=_columns_named(path, heads, "categorical", options.get("categorical", "")),
        how="index" if _chosen(options, "categories", ("onehot", "index")) == "index" else "onehot",
        predict=_chosen(options, "predict", ("number", "class")),
        scale_targets=_chosen(options, "scale-target", ("yes", "no")) != "no", notes=tuple(notes),
    )


def no_column(path: Path, heads: Sequence[str], option: str, name: str, or_else: str = "") -> BadRequest:
    """The refusal of a table without the column that an option names."""
    some = ", ".join(map(shown, heads[:20])) + (f" and {len(heads) - 20:,} more" if len(heads) > 20 else "")
    return BadRequest(
        f"{str(path)!r} has no column {name!r} but {some}: name the right one as {path.name}?{option}=COLUMN{or_else}"
    )


def _columns_named(path: Path, heads: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """Names separated by commas; one whose own name has a comma is found by it."""
    names = [text] if text in heads else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in heads:
            raise no_column(path, heads, option, name)
    return tuple(dict.fromkeys(names))


def _part(
    path: Path, heads: Sequence[str], options: Mapping[str, str], targets: Sequence[str], ignored: Sequence[str]
) -> str | None:
    if "part" in options:
        named = _columns_named(path, heads, "part", options["part"])
        if len(named) > 1:
            raise BadRequest(f"{str(path)!r}: part={options['part']!r} names several columns; one divides the rows")
        return named[0] if named else None
    taken = {*targets, *ignored, *_columns_named(path, heads, "features", options.get("features", ""))}
    return part_column(heads, taken)


def _chosen(options: Mapping[str, str], option: str, words: tuple[str, ...]) -> str | None:
    word = options.get(option)
    if word is not None and word not in words:
        raise WrongData(f"{option} {word!r}; choose {' or '.join(words)}")
    return word
