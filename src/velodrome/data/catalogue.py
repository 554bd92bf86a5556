"""Finds data sets by name. A new data set is an entry in one of the modules named here, or a further module."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from velodrome.data.base import DataSet, Description, Progress
from velodrome.errors import BadRequest

if TYPE_CHECKING:
    from velodrome.data.splits import Splits

MODULES = ("digits", "idx")


@cache
def _data_sets() -> dict[str, DataSet]:
    modules = [import_module(f"velodrome.data.{name}") for name in MODULES]
    return {data_set.name: data_set for module in modules for data_set in module.DATA_SETS}


def names() -> list[str]:
    return list(_data_sets())


def data_set(name: str) -> DataSet:
    try:
        return _data_sets()[name]
    except KeyError:
        raise BadRequest(f"no data set {name!r}: choose one of {', '.join(names())}") from None


def describe(name: str, *, validation: float = 0.1) -> Description:
    """What is known without opening any file: counts for that share of validation examples, shape, classes, licence."""
    return data_set(name).describe(validation)


def prepare(name: str, progress: Progress | None = None) -> None:
    """Bring the files of a data set to this machine, so that nobody who loads it has to wait for a network."""
    data_set(name).prepare(progress)


def load(name: str, *, seed: int, validation: float) -> Splits:
    """The examples, divided. Fetches what is missing; see `prepare`."""
    return data_set(name).load(seed, validation)
