"""A CSV or Parquet file as a data set: read once into columns, which are cached; encoded when it is loaded.

Means and deviations are those of the training rows, so they depend on how the rows are divided, and the cache does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data.bad_data import Fault, refuse, summaries
from velodrome.data.base import BadData, Checked, Description, Progress
from velodrome.data.cache import decoded
from velodrome.data.images.cached_set import sizes_of
from velodrome.data.tables.request import Request, request_of

if TYPE_CHECKING:
    from velodrome.data.examples import ArrayField, ExampleSet


@dataclass(frozen=True)
class TableSet:
    """Rows of a table as examples."""

    name: str
    path: Path
    options: tuple[tuple[str, str], ...]
    bad_data: BadData

    @cached_property
    def request(self) -> Request:
        return request_of(self.name, self.path, dict(self.options))

    @property
    def source(self) -> str:
        return repr(("table", str(self.path.resolve()), self.options))

    def key(self) -> str:
        about = self.path.stat()
        return decoded.key_of(("table", 1, self.options), [(self.path.name, about.st_size, about.st_mtime_ns)])

    # -- what a data set can do

    def describe(self, validation: float) -> Description:
        kept = decoded.find(self.source, self.key())
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
            notes=_notes(about), inputs=inputs, targets=targets, task=about["task"],
        )

    def implied_task(self) -> str | None:
        """Known once the table was read, which reads it if need be: its values decide."""
        return str(self._decoded(None).about["task"])

    def prepare(self, progress: Progress | None) -> None:
        self._decoded(progress)

    def load(self, seed: int, validation: float) -> ExampleSet:
        from velodrome.data.tables.load import load

        kept = self._decoded(None)
        return load(self.name, kept, _notes(kept.about), seed, validation)

    def is_here(self) -> bool:
        return decoded.find(self.source, self.key()) is not None

    def verify(self) -> Sequence[Checked]:
        return decoded.verify(self.source)

    def forget(self) -> None:
        decoded.forget(self.source)

    # -- the cache

    def _decoded(self, progress: Progress | None) -> decoded.Decoded:
        kept = decoded.keep(self.source, self.key(), lambda folder: self._make(folder, progress))
        if self.bad_data == "fail":
            refuse(self.name, _faults(kept.about))
        return kept

    def _make(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        from velodrome.data.tables.make import make

        size = self.path.stat().st_size

        def advance(share: float) -> None:
            if progress:
                progress(round(share * size), size, f"reading {self.name}")

        return make(self.name, self.path, self.request, folder, advance)


def _faults(about: dict[str, Any]) -> list[Fault]:
    return [Fault.from_json(fields) for fields in about["faults"]]


def _notes(about: dict[str, Any]) -> tuple[str, ...]:
    return (*summaries(_faults(about)), *about["notes"])


def _class_names(about: dict[str, Any]) -> tuple[str, ...]:
    """Of the classes, or of the columns of the target."""
    if about["task"] == "classification":
        return tuple(about["targets"][0]["categories"])
    return tuple(target["name"] for target in about["targets"])


def _classes(about: dict[str, Any]) -> int | None:
    return len(_class_names(about)) if about["task"] != "regression" else None


def _fields(about: dict[str, Any]) -> tuple[tuple[ArrayField, ...], tuple[ArrayField, ...]]:
    """Inputs and targets as loading makes them."""
    from velodrome.data.examples import TARGET, ArrayField
    from velodrome.data.tables.encoding import FEATURES, INDICES

    indexed = [one for one in about["features"] if one["categories"] is not None and about["how"] == "index"]
    width = sum(
        1 if one["categories"] is None else len(one["categories"]) for one in about["features"] if one not in indexed
    )
    inputs = []
    if width:
        inputs.append(ArrayField(FEATURES, (width,), "float32"))
    if indexed:
        inputs.append(ArrayField(INDICES, (len(indexed),), "int64"))
    count = len(about["targets"])
    shape = () if count == 1 else (count,)
    return tuple(inputs), (ArrayField(TARGET, shape, "float32" if about["task"] == "regression" else "int64"),)
