"""How the cells of a table become numbers for a model: fitted on training rows, stored with it, used for new rows.

What is to be predicted is decided here, too: whether the target columns are numbers, classes or labels.

The rule for what is missing: a missing number counts as the mean of its column; a missing category, or one that was not
there when the table was prepared, as none (all zeros, or index 0).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from velodrome.data.base import NDArray, WrongData, np
from velodrome.data.own.columns import Column, How, is_missing, listed
from velodrome.errors import BadRequest, shown

#: What the inputs are called: numbers and one-hot categories, and categories as indices.
FEATURES, INDICES = "features", "categories"
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class ColumnEncoding:
    """How one column is encoded.

    `scale`: a number less `mean`, over `deviation`. `onehot`: a column of 0 and 1 for each category. `index`: the place
    of the category, from 1 on.
    """

    name: str
    how: Literal["scale", "onehot", "index"]
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return len(self.categories) if self.how == "onehot" else 1

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.categories)}

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """(rows, width) as float32, or as int64 for an index. Numbers are rounded once, after the division."""
        if self.how == "scale":
            scaled = np.where(np.isnan(values), 0.0, (values - self.mean) / self.deviation)
            return np.asarray(scaled, np.float32)[:, None]
        if self.how == "index":
            return (values + 1).astype(np.int64)[:, None]
        encoded = np.zeros((len(values), self.width), np.float32)
        there = np.flatnonzero(values >= 0)
        encoded[there, values[there]] = 1
        return encoded

    def read(self, cell: Any) -> Column:
        """One cell of a new row as a column of one value; None and unknown categories count as missing."""
        if self.how == "scale":
            return Column(np.array([_number(self.name, cell)]))
        text = "" if cell is None else str(cell).strip()
        return Column(np.array([self.places.get(text, -1)], np.int32), self.categories)

    def as_json(self) -> dict[str, Any]:
        if self.how == "scale":
            return {"name": self.name, "kind": "number", "mean": self.mean, "deviation": self.deviation}
        return {"name": self.name, "kind": "category", "how": self.how, "categories": list(self.categories)}


@dataclass(frozen=True)
class Encoding:
    """The features of a table in the order of the model's input, and its targets."""

    features: tuple[ColumnEncoding, ...]
    #: A target of categories is a class by its place; one of numbers is scaled, with mean 0 and deviation 1 if not.
    targets: tuple[ColumnEncoding, ...]

    @cached_property
    def indices(self) -> tuple[ColumnEncoding, ...]:
        """The columns that become indices."""
        return tuple(column for column in self.features if column.how == "index")

    @cached_property
    def _flat(self) -> tuple[ColumnEncoding, ...]:
        return tuple(column for column in self.features if column.how != "index")

    @cached_property
    def width(self) -> int:
        """Numbers of an encoded row, indices not counted."""
        return sum(column.width for column in self._flat)

    def encode(self, columns: Mapping[str, Column]) -> dict[str, NDArray[Any]]:
        """Inputs by name: `features` (rows, width) as float32, `categories` (rows, columns) as int64."""
        inputs: dict[str, NDArray[Any]] = {}
        if self._flat:
            rows = len(next(iter(columns.values())))
            inputs[FEATURES] = encoded = np.empty((rows, self.width), np.float32)
            first = 0
            for column in self._flat:
                encoded[:, first : first + column.width] = column.encode(columns[column.name].values)
                first += column.width
        if self.indices:
            indices = [column.encode(columns[column.name].values) for column in self.indices]
            inputs[INDICES] = np.concatenate(indices, axis=1)
        return inputs

    def encode_targets(self, columns: Mapping[str, Column]) -> NDArray[Any]:
        """Classes (rows,) as int64, or numbers (rows, targets) as float32; none of them may be missing."""
        if self.targets[0].how == "index":
            return columns[self.targets[0].name].values.astype(np.int64)
        return np.concatenate([column.encode(columns[column.name].values) for column in self.targets], axis=1)

    def as_json(self) -> dict[str, Any]:
        """As it is stored with a model."""
        return {
            "features": [column.as_json() for column in self.features],
            "targets": [column.as_json() for column in self.targets],
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input, of one row."""
        shapes: dict[str, tuple[int, ...]] = {FEATURES: (self.width,)} if self._flat else {}
        return shapes | ({INDICES: (len(self.indices),)} if self.indices else {})

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Encoding:
        """What `as_json` wrote; `ValueError` if it is something else."""
        if not isinstance(fields, Mapping):
            raise ValueError("the columns are not an object with features and targets")
        parts = []
        for part in ("features", "targets"):
            columns = fields.get(part)
            if not isinstance(columns, list | tuple) or not columns:
                raise ValueError(f"the columns have no list of {part}")
            parts.append(tuple(map(_column, columns)))
            if len({column.name for column in parts[-1]}) < len(parts[-1]):
                raise ValueError(f"two columns of the {part} have the same name")
        return cls(*parts)


def _column(fields: Any) -> ColumnEncoding:
    match fields:
        case {"kind": "number", "name": str(name), "mean": float() | int() as mean,
              "deviation": float() | int() as deviation}:
            if not (abs(mean) <= _LARGEST and 0 < deviation <= _LARGEST):
                raise ValueError(f"the mean or the deviation of column {shown(name)!r} is no number that it can have")
            return ColumnEncoding(name, "scale", mean, deviation)
        case {"kind": "category", "name": str(name), "how": "onehot" | "index" as how,
              "categories": list(names) | tuple(names)}:
            if not all(isinstance(category, str) for category in names):
                raise ValueError(f"the categories of column {shown(name)!r} are not texts")
            return ColumnEncoding(name, how, categories=tuple(names))
    raise ValueError(f"a column is described by {shown(fields)}, which is neither of numbers nor of categories")


def fit(
    columns: Mapping[str, Column], features: Sequence[str], targets: Sequence[str], train: NDArray[np.int64], *,
    how: How, scale_targets: bool,
) -> Encoding:
    """The encoding of a table: means and deviations of its training rows, categories of all rows.

    Categories come from all rows so that the width of the input does not depend on how the rows are divided.
    """

    def fitted(name: str, how: How, scaled: bool) -> ColumnEncoding:
        column = columns[name]
        if not column.is_numeric:
            return ColumnEncoding(name, how, categories=column.names)
        mean, deviation = _moments(column.values[train]) if scaled else (0.0, 1.0)
        return ColumnEncoding(name, "scale", mean, deviation)

    return Encoding(
        tuple(fitted(name, how, True) for name in features),
        tuple(fitted(name, "index", scale_targets) for name in targets),
    )


def _moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and deviation. A constant column has deviation 1: it is 0 in every training row."""
    there = values[~np.isnan(values)]
    if not len(there):
        return 0.0, 1.0
    if (there == there[0]).all():
        return float(there[0]), 1.0
    # The squares of huge numbers would overflow.
    largest = float(np.abs(there).max())
    scale = 1.0 if largest < 1e150 else largest
    scaled = there / scale
    return float(scaled.mean()) * scale, (float(scaled.std()) or 1.0) * scale


def encode_row(encoding: Encoding | Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """One new row, by column name, as the inputs of a model: as training encoded it, with a batch of one.

    `encoding` is what was stored with the model, `columns.json`. A column that the row lacks counts as missing, and so
    does None.
    """
    known = encoding if isinstance(encoding, Encoding) else Encoding.from_json(encoding)
    return known.encode({column.name: column.read(row.get(column.name)) for column in known.features})


def _number(name: str, cell: Any) -> float:
    if cell is None or (isinstance(cell, str) and is_missing(cell)):
        return float("nan")
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise BadRequest(f"column {shown(name)!r} is a number, and {shown(cell)!r} is none") from None
    except OverflowError:
        raise BadRequest(f"column {shown(name)!r}: {shown(cell, 20)} is too large for a number") from None


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
            f"column {shown(head)!r} holds fractions such as {values[values != np.floor(values)][0]:g}, and "
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

