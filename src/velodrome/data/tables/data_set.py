"""A CSV or Parquet file as a data set: what of it is asked for, read once into columns, which are cached.

It is encoded when it is loaded: means and deviations are those of the training rows, so they depend on how the rows are
divided, and the cache does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data import cache, delimited
from velodrome.data.base import BadData, Checked, Description, Fault, Progress, refuse, summaries
from velodrome.data.split import part_column, sizes_of
from velodrome.data.tables.columns import MOST_COLUMNS
from velodrome.data.tables.encoding import How
from velodrome.errors import BadRequest
from velodrome.printable import shown

if TYPE_CHECKING:
    from velodrome.data.examples import ArrayField, ExampleSet

OPTIONS = ("target", "features", "ignore", "part", "categories", "categorical", "predict", "scale-target")
ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


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


def heads_of(path: Path) -> list[str]:
    """The names of a table's columns, as its header says."""
    if path.suffix.lower() in (".parquet", ".pq"):
        from velodrome.data.tables.files import heads

        found = heads(path)
    else:
        found = delimited.columns(path)
    if len(found) > MOST_COLUMNS:
        raise BadRequest(
            f"{str(path)!r} has {len(found):,} columns, and at most {MOST_COLUMNS:,} are read: make a table of those "
            "you need"
        )
    return found


def request_of(name: str, path: Path, options: Mapping[str, str]) -> Request:
    """The request that the options of a data set's name make; columns that are not there are refused."""
    heads = heads_of(path)
    twice = [head for head, count in Counter(heads).items() if count > 1 and head]
    if twice:
        raise BadRequest(f"{str(path)!r} has two columns {shown(twice[0])!r}: rename one")
    targets = _columns(path, heads, "target", options.get("target", ""))
    if not targets:
        raise BadRequest(f"--dataset {name!r}: name the column to predict as {path.name}?target=COLUMN")
    ignored = _columns(path, heads, "ignore", options.get("ignore", ""))
    part = _part(path, heads, options, targets, ignored)
    notes = []
    if "features" in options:
        features = _columns(path, heads, "features", options["features"])
    else:
        features = tuple(head for head in heads if head and head not in (*targets, *ignored, part))
        if "" in heads:
            notes.append("a column without a name is left out")
    for column in features:
        if column in targets or column == part:
            what = "to predict" if column in targets else "of parts"
            raise BadRequest(f"--dataset {name!r}: column {column!r} is the one {what}, and cannot be a feature too")
        if column in ignored:
            raise BadRequest(f"--dataset {name!r}: column {column!r} is both in features and in ignore")
    if not features:
        raise BadRequest(f"--dataset {name!r}: no column is left as a feature; name some as &features=COLUMN,COLUMN")
    return Request(
        targets=targets, features=features, part=part, part_named=bool(options.get("part")),
        categorical=_columns(path, heads, "categorical", options.get("categorical", "")),
        how="index" if _chosen(name, options, "categories", ("onehot", "index")) == "index" else "onehot",
        predict=_chosen(name, options, "predict", ("number", "class")),
        scale_targets=_chosen(name, options, "scale-target", ("yes", "no")) != "no", notes=tuple(notes),
    )


def _columns(path: Path, heads: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """Names separated by commas; one whose own name has a comma is found by it."""
    names = [text] if text in heads else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in heads:
            some = ", ".join(map(shown, heads[:20])) + (f" and {len(heads) - 20:,} more" if len(heads) > 20 else "")
            raise BadRequest(
                f"{str(path)!r} has no column {name!r} but {some}: name the right one as {path.name}?{option}=COLUMN"
            )
    return tuple(dict.fromkeys(names))


def _part(
    path: Path, heads: Sequence[str], options: Mapping[str, str], targets: Sequence[str], ignored: Sequence[str]
) -> str | None:
    if "part" in options:
        found = _columns(path, heads, "part", options["part"])
        if len(found) > 1:
            raise BadRequest(f"{str(path)!r}: part={options['part']!r} names several columns; one divides the rows")
        return found[0] if found else None
    taken = {*targets, *ignored, *_columns(path, heads, "features", options.get("features", ""))}
    return part_column(heads, taken)


def _chosen(name: str, options: Mapping[str, str], option: str, words: tuple[str, ...]) -> str | None:
    word = options.get(option)
    if word is not None and word not in words:
        raise BadRequest(f"--dataset {name!r}: {option} {word!r}; choose {' or '.join(words)}")
    return word


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
        return cache.key_of(("table", 1, self.options), [(self.path.name, about.st_size, about.st_mtime_ns)])

    # -- what a data set can do

    def describe(self, validation: float) -> Description:
        kept = cache.find(self.source, self.key())
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
        from velodrome.data.tables.make import load

        kept = self._decoded(None)
        return load(self.name, kept, _notes(kept.about), seed, validation)

    def is_here(self) -> bool:
        return cache.find(self.source, self.key()) is not None

    def verify(self) -> Sequence[Checked]:
        return cache.verify(self.source)

    def forget(self) -> None:
        cache.forget(self.source)

    # -- the cache

    def _decoded(self, progress: Progress | None) -> cache.Decoded:
        kept = cache.keep(self.source, self.key(), lambda folder: self._make(folder, progress))
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
