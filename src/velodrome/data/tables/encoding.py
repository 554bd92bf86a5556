"""How the cells of a table become numbers for a model: fitted on training rows, stored with it, used for new rows.

The rule for what is missing: a missing number counts as the mean of its column; a missing category, or one that was not
there when the table was prepared, as none (all zeros, or index 0).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.data.tables.columns import Categories, Column, Numbers, is_missing
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: What the inputs are called: numbers and one-hot categories, and categories as indices.
FEATURES, INDICES = "features", "categories"
How = Literal["onehot", "index"]
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Scaled:
    """A column of numbers, less `mean`, over `deviation`."""

    name: str
    mean: float
    deviation: float

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """(rows,) as float32; rounded once, after the division."""
        return np.asarray(np.where(np.isnan(values), 0.0, (values - self.mean) / self.deviation), np.float32)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": "number", "mean": self.mean, "deviation": self.deviation}


@dataclass(frozen=True)
class Indexed:
    """A column of categories: a column of 0 and 1 for each (`onehot`), or the place of each, from 1 on (`index`)."""

    name: str
    categories: tuple[str, ...]
    how: How

    @property
    def width(self) -> int:
        return len(self.categories) if self.how == "onehot" else 1

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.categories)}

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": "category", "how": self.how, "categories": list(self.categories)}


@dataclass(frozen=True)
class Encoding:
    """The features of a table in the order of the model's input, and its targets."""

    features: tuple[Scaled | Indexed, ...]
    #: A target of categories is a class by its place; one of numbers is scaled, with mean 0 and deviation 1 if not.
    targets: tuple[Scaled | Indexed, ...]

    @property
    def width(self) -> int:
        """Numbers of an encoded row, indices not counted."""
        return sum(1 if isinstance(column, Scaled) else column.width for column in self._flat)

    @property
    def indices(self) -> tuple[Indexed, ...]:
        """The columns that become indices."""
        return tuple(column for column in self.features if isinstance(column, Indexed) and column.how == "index")

    @property
    def _flat(self) -> list[Scaled | Indexed]:
        return [column for column in self.features if isinstance(column, Scaled) or column.how != "index"]

    def encode(self, columns: Mapping[str, Column]) -> dict[str, NDArray[Any]]:
        """Inputs by name: `features` (rows, width) as float32, `categories` (rows, columns) as int64."""
        rows = len(next(iter(columns.values())))
        inputs: dict[str, NDArray[Any]] = {}
        if self._flat:
            inputs[FEATURES] = encoded = np.zeros((rows, self.width), np.float32)
            first = 0
            for column in self._flat:
                given = columns[column.name]
                if isinstance(column, Scaled):
                    assert isinstance(given, Numbers)
                    encoded[:, first] = column.encode(given.values)
                    first += 1
                else:
                    assert isinstance(given, Categories)
                    there = np.flatnonzero(given.codes >= 0)
                    encoded[there, first + given.codes[there]] = 1
                    first += column.width
        if self.indices:
            codes = [columns[column.name] for column in self.indices]
            inputs[INDICES] = np.stack([code.codes for code in codes if isinstance(code, Categories)], 1) + np.int64(1)
        return inputs

    def encode_targets(self, columns: Mapping[str, Column]) -> NDArray[Any]:
        """Classes (rows,) as int64, or numbers (rows, targets) as float32; none of them may be missing."""
        first = self.targets[0]
        if isinstance(first, Indexed):
            given = columns[first.name]
            assert isinstance(given, Categories)
            return given.codes.astype(np.int64)
        encoded = []
        for column in self.targets:
            numbers = columns[column.name]
            assert isinstance(numbers, Numbers)
            assert isinstance(column, Scaled)
            encoded.append(column.encode(numbers.values))
        return np.stack(encoded, 1)

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


def _column(fields: Any) -> Scaled | Indexed:
    match fields:
        case {"kind": "number", "name": str(name), "mean": float() | int() as mean,
              "deviation": float() | int() as deviation}:
            if not (abs(mean) <= _LARGEST and 0 < deviation <= _LARGEST):
                raise ValueError(f"the mean or the deviation of column {shown(name)!r} is no number that it can have")
            return Scaled(name, mean, deviation)
        case {"kind": "category", "name": str(name), "how": "onehot" | "index" as how,
              "categories": list(names) | tuple(names)}:
            if not all(isinstance(category, str) for category in names):
                raise ValueError(f"the categories of column {shown(name)!r} are not texts")
            return Indexed(name, tuple(names), how)
    raise ValueError(f"a column is described by {shown(fields)}, which is neither of numbers nor of categories")


def fit(
    columns: Mapping[str, Column], features: Sequence[str], targets: Sequence[str], train: NDArray[np.int64], *,
    how: How, scale_targets: bool,
) -> Encoding:
    """The encoding of a table: means and deviations of its training rows, categories of all rows.

    Categories come from all rows so that the width of the input does not depend on how the rows are divided.
    """

    def fitted(name: str, how: How, scaled: bool) -> Scaled | Indexed:
        column = columns[name]
        if isinstance(column, Categories):
            return Indexed(name, column.names, how)
        return _scaled(name, column.values[train]) if scaled else Scaled(name, 0.0, 1.0)

    return Encoding(
        tuple(fitted(name, how, True) for name in features),
        tuple(fitted(name, "index", scale_targets) for name in targets),
    )


def _scaled(name: str, values: NDArray[np.float64]) -> Scaled:
    """A constant column has deviation 1: it is 0 in every training row."""
    there = values[~np.isnan(values)]
    if not len(there):
        return Scaled(name, 0.0, 1.0)
    if (there == there[0]).all():
        return Scaled(name, float(there[0]), 1.0)
    # The squares of huge numbers would overflow.
    largest = float(np.abs(there).max())
    scale = 1.0 if largest < 1e150 else largest
    scaled = there / scale
    return Scaled(name, float(scaled.mean()) * scale, (float(scaled.std()) or 1.0) * scale)


def encode_row(encoding: Encoding | Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """One new row, by column name, as the inputs of a model: as training encoded it, with a batch of one.

    `encoding` is what was stored with the model, `columns.json`. A column that the row lacks counts as missing, and so
    does None.
    """
    known = encoding if isinstance(encoding, Encoding) else Encoding.from_json(encoding)
    columns: dict[str, Column] = {}
    for column in known.features:
        cell = row.get(column.name)
        if isinstance(column, Scaled):
            columns[column.name] = Numbers(np.array([_number(column.name, cell)]))
        else:
            text = "" if cell is None else str(cell).strip()
            code = column.places.get(text, -1)
            columns[column.name] = Categories(np.array([code], np.int32), column.categories)
    return known.encode(columns)


def _number(name: str, cell: Any) -> float:
    if cell is None or (isinstance(cell, str) and is_missing(cell)):
        return float("nan")
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise BadRequest(f"column {shown(name)!r} is a number, and {shown(cell)!r} is none") from None
    except OverflowError:
        raise BadRequest(f"column {shown(name)!r}: {shown(cell, 20)} is too large for a number") from None
