"""What is to be predicted: decides from the target columns of a table whether they are numbers, classes or labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from velodrome.data.tables.columns import Categories, Column, Numbers
from velodrome.errors import BadRequest
from velodrome.printable import shown

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


def decide(name: str, columns: Mapping[str, Column], predict: str | None) -> Targets:
    """Words are classes; numbers are predicted unless they are whole and few; several columns of 0 and 1 are labels."""
    if len(columns) > 1:
        return _several(name, columns, predict)
    (head, column), = columns.items()
    if isinstance(column, Categories):
        if predict == "number":
            raise BadRequest(f"--dataset {name!r}: column {shown(head)!r} holds words, and predict=number needs others")
        return Targets("classification", columns, f"{shown(head)!r} has {len(column.names)} classes")
    values = np.unique(column.values[~np.isnan(column.values)])
    whole = bool((values == np.floor(values)).all())
    few = len(values) <= MOST_NUMBERED_CLASSES
    if predict == "class" and not whole:
        raise BadRequest(
            f"--dataset {name!r}: column {shown(head)!r} holds fractions such as {_fraction(values):g}, and "
            "predict=class needs words or whole numbers"
        )
    if predict == "class" or (predict is None and whole and few):
        classes = as_classes(column, values)
        way_out = "" if predict else "; &predict=number predicts it as a number"
        return Targets(
            "classification", {head: classes}, f"{shown(head)!r} has {len(classes.names)} classes{way_out}"
        )
    return Targets("regression", columns, f"{shown(head)!r} is predicted as a number")


def _several(name: str, columns: Mapping[str, Column], predict: str | None) -> Targets:
    for head, column in columns.items():
        if isinstance(column, Categories):
            raise BadRequest(
                f"--dataset {name!r}: column {shown(head)!r} holds words, and several targets must all be numbers"
            )
    numbers = {head: column.values for head, column in columns.items() if isinstance(column, Numbers)}
    ones = all(np.isin(values[~np.isnan(values)], (0, 1)).all() for values in numbers.values())
    if predict == "class" and not ones:
        raise BadRequest(f"--dataset {name!r}: predict=class with several targets needs columns of 0 and 1")
    names = listed(list(columns))
    if ones and predict != "number":
        return Targets("multi-label", columns, f"{names} are labels, each 0 or 1")
    return Targets("regression", columns, f"{names} are predicted as numbers")


def as_classes(column: Numbers, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Categories:
    """Whole numbers as classes in the order of their size."""
    codes = np.searchsorted(values, column.values).astype(np.int32)
    codes[np.isnan(column.values)] = -1
    return Categories(codes, tuple(f"{value:.0f}" for value in values))


def _fraction(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(values[values != np.floor(values)][0])


def listed(names: Sequence[str], most: int = 8) -> str:
    """`'a', 'b' and 3 more`."""
    some = ", ".join(repr(shown(name)) for name in names[:most])
    return some + (f" and {len(names) - most:,} more" if len(names) > most else "")
