"""A CSV or Parquet file as a data set: read once into columns, which are cached; encoded when it is loaded.

Means and deviations are those of the training rows, so they depend on how the rows are divided, and the cache does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from velodrome.data.base import BadData, Faults, Progress
from velodrome.data.examples import TARGET, ArrayField, ExampleSet
from velodrome.data.source import CachedSource, Description, PathFormat, file_key, notes_of
from velodrome.data.split import sizes_of
from velodrome.data.tables.encoding import FEATURES, INDICES
from velodrome.data.tables.files import Request, request_of
from velodrome.data.tables.make import load, make

_TEXT, _PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
_OPTIONS = ("target", "features", "ignore", "part", "categories", "categorical", "predict", "scale-target")


@dataclass(frozen=True)
class TableSet(CachedSource):
    """Rows of a table as examples."""

    path: Path
    options: tuple[tuple[str, str], ...]

    @cached_property
    def request(self) -> Request:
        return request_of(self.name, self.path, dict(self.options))

    @property
    def source(self) -> str:
        return repr(("table", str(self.path.resolve()), self.options))

    def key(self) -> str:
        return file_key(self.path, "table", 1, self.options)

    def describe(self, validation: float) -> Description:
        kept = self.kept()
        if kept is None:
            _ = self.request  # refuses columns that are not there
            return Description(
                name=self.name, title="your own table", licence="your own", homepage="", kind="arrays", train=None,
                validation=None, test=None, input_shape=None, classes=None, bytes=self.path.stat().st_size,
            )
        about = kept.about
        train, validated, test = sizes_of(tuple(about["parts"]), validation)
        inputs, targets = _fields(about)
        return Description(
            name=self.name, title="your own table", licence="your own", homepage="", kind="arrays", train=train,
            validation=validated, test=test, input_shape=inputs[0].shape if len(inputs) == 1 else None,
            classes=_classes(about), class_names=_class_names(about), bytes=self.path.stat().st_size,
            notes=notes_of(about), inputs=inputs, targets=targets, task=about["task"],
        )

    def implied_task(self) -> str | None:
        """Known once the table was read, which reads it if need be: its values decide."""
        return str(self.decoded().about["task"])

    def load(self, seed: int, validation: float) -> ExampleSet:
        kept = self.decoded()
        return load(self.name, kept, notes_of(kept.about), seed, validation)

    def make(self, folder: Path, faults: Faults, progress: Progress | None) -> dict[str, Any]:
        size = self.path.stat().st_size

        def advance(share: float) -> None:
            if progress:
                progress(round(share * size), size, f"reading {self.name}")

        return make(self.name, self.path, self.request, folder, faults, advance)


def _class_names(about: dict[str, Any]) -> tuple[str, ...]:
    """Of the classes, or of the columns of the target."""
    if about["task"] == "classification":
        return tuple(about["targets"][0]["categories"])
    return tuple(target["name"] for target in about["targets"])


def _classes(about: dict[str, Any]) -> int | None:
    return len(_class_names(about)) if about["task"] != "regression" else None


def _fields(about: dict[str, Any]) -> tuple[tuple[ArrayField, ...], tuple[ArrayField, ...]]:
    """Inputs and targets as loading makes them."""
    indexed = [column for column in about["features"] if column["categories"] is not None and about["how"] == "index"]
    width = sum(
        1 if column["categories"] is None else len(column["categories"]) for column in about["features"]
        if column not in indexed
    )
    inputs = []
    if width:
        inputs.append(ArrayField(FEATURES, (width,), "float32"))
    if indexed:
        inputs.append(ArrayField(INDICES, (len(indexed),), "int64"))
    count = len(about["targets"])
    shape = () if count == 1 else (count,)
    return tuple(inputs), (ArrayField(TARGET, shape, "float32" if about["task"] == "regression" else "int64"),)


def _takes(path: Path, options: Mapping[str, str]) -> bool:
    """Text files are tables of photographs unless a column is to be predicted."""
    ending = path.suffix.lower()
    return ending in _PARQUET or (ending in _TEXT and "target" in options)


def _source(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> TableSet:
    return TableSet(name, bad_data, path, tuple(sorted(options.items())))


FORMATS = (PathFormat(_takes, _OPTIONS, _source),)
