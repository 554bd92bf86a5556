"""A CSV or Parquet file as a data set: read once into columns of numbers and category codes, targets and parts, which
are cached; divided, standardised and encoded when it is loaded.

Means and deviations are those of the training rows, so they depend on how the rows are divided, and the cache does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from velodrome.data.base import BadData, Faults, NDArray, Progress, WrongData, memory_budget, naming, np
from velodrome.data.examples import TARGET, ArrayField, ExamplePart, ExampleSet
from velodrome.data.own.columns import Column, Request, Table, listed, request_of
from velodrome.data.own.encoding import INDICES, ColumnEncoding, Encoding, Targets, decide, fit
from velodrome.data.own.tables import PARQUET, TEXT, heads_of, read_table
from velodrome.data.source import CachedSource, Description, PathFormat, file_key, notes_of
from velodrome.data.split import (
    PART_NAMES,
    TRAIN,
    count_parts,
    divide,
    fingerprints,
    looks_like_parts,
    overlooked_note,
    sizes_of,
    trainable_classes,
    with_split_warnings,
)
from velodrome.errors import bytes_text, shown

_OPTIONS = ("target", "features", "ignore", "part", "categories", "categorical", "predict", "scale-target")
#: Columns of 0 and 1 that one column of categories may become.
MOST_ONE_HOT = 1_000


@dataclass(frozen=True)
class TableSet(CachedSource):
    """Rows of a table as examples."""

    path: Path
    options: tuple[tuple[str, str], ...]

    @cached_property
    def request(self) -> Request:
        with naming(self.name):
            return request_of(self.path, heads_of(self.path), dict(self.options))

    @property
    def source(self) -> str:
        return repr(("table", str(self.path.resolve()), self.options))

    def key(self) -> str:
        return file_key(self.path, "table", 1, self.options)

    def describe(self, validation: float) -> Description:
        about = Description(name=self.name, title="your own table", kind="arrays", bytes=self.path.stat().st_size)
        kept = self.kept()
        if kept is None:
            _ = self.request  # refuses columns that are not there
            return about
        train, validated, test = sizes_of(tuple(kept.about["parts"]), validation)
        inputs, targets = _fields(kept.about)
        names = _class_names(kept.about)
        return replace(
            about, train=train, validation=validated, test=test, notes=notes_of(kept.about), inputs=inputs,
            input_shape=inputs[0].shape if len(inputs) == 1 else None, targets=targets, task=kept.about["task"],
            classes=len(names) if kept.about["task"] != "regression" else None, class_names=names,
        )

    def implied_task(self) -> str | None:
        """Known once the table was read, which reads it if need be: its values decide."""
        return str(self.decoded().about["task"])

    def make(self, folder: Path, faults: Faults, progress: Progress) -> dict[str, Any]:
        size, request, notes = self.path.stat().st_size, self.request, list(self.request.notes)
        table = read_table(
            self.path, request, faults, lambda share: progress(round(share * size), size, f"reading {self.name}")
        )
        parts, used = _parts(table, request, faults, notes)
        kept = used & ~np.logical_or.reduce([table.columns[target].missing for target in request.targets])
        for row in np.flatnonzero(used & ~kept).tolist():
            faults.add("rows without a target", table.place(row))
        table, parts = table.rows(kept), parts[kept]
        targets = decide({target: table.columns[target] for target in request.targets}, request.predict)
        notes.insert(0, targets.note)
        if targets.task == "classification":
            table, parts, targets = _without_small_classes(table, parts, targets, faults)
        if not (parts == TRAIN).any():
            raise WrongData(f"it has no rows to train on{faults.because}")
        features = {feature: table.columns[feature] for feature in request.features}
        _check_categories(features, request)
        missing = {feature: int(column.missing.sum()) for feature, column in features.items() if column.missing.any()}
        if missing:
            cells = ", ".join(f"{shown(feature)!r} {count:,}" for feature, count in list(missing.items())[:8])
            more = f" and {len(missing) - 8:,} more columns" if len(missing) > 8 else ""
            notes.append(
                f"cells without a value: {cells}{more}; a missing number counts as the mean of its column, a missing "
                "category as none"
            )
        _write(folder, features, targets, parts)
        return {
            "task": targets.task, "features": [_about(feature, column) for feature, column in features.items()],
            "targets": [_about(target, column) for target, column in targets.columns.items()], "how": request.how,
            "parts": count_parts(parts),
            "scale_targets": request.scale_targets and targets.task == "regression",
            "notes": notes, "missing": missing,
        }

    def load(self, seed: int, validation: float) -> ExampleSet:
        """The rows as arrays, encoded with the statistics of the training rows."""
        kept = self.decoded()
        about = kept.about
        features = dict(_columns(about["features"], kept.array("numbers"), kept.array("codes")))
        targets = dict(_columns(about["targets"], kept.array("target_numbers"), kept.array("target_codes")))
        parts = np.asarray(kept.array("parts"))
        first = next(iter(targets.values()))
        groups = np.zeros(len(parts), np.int64) if first.is_numeric else first.values.astype(np.int64)
        division = divide(groups, parts, seed, validation)
        encoding = fit(
            {**features, **targets}, list(features), list(targets), division[0], how=about["how"],
            scale_targets=about["scale_targets"],
        )
        with naming(self.name):
            _check_memory(encoding, len(parts))
        train, validated, test = (_part(encoding, features, targets, about["task"], chosen) for chosen in division)
        names = _class_names(about)
        data = ExampleSet(
            self.name, train, validated, test, classes=len(names) if about["task"] != "regression" else None,
            class_names=names, notes=(*notes_of(about), *_done(encoding, features, division[0], about["task"])),
            columns={**encoding.as_json(), "task": about["task"], "missing": about["missing"]},
        )
        prints = kept.array("prints")
        values = np.column_stack([column.values for column in targets.values()])
        return with_split_warnings(data, [prints[chosen] for chosen in division], "rows",
                                   [values[chosen] for chosen in division])


def _parts(
    table: Table, request: Request, faults: Faults, notes: list[str]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The part of each row, and which rows are of a part; without a column of parts all are for training."""
    parts, known = np.full(len(table), TRAIN, np.int8), np.ones(len(table), np.bool_)
    if request.part is None:
        notes += [
            overlooked_note(feature, "used as a feature", f"&part={feature}") for feature in request.features
            if looks_like_parts(table.columns[feature].names)
        ]
        return parts, known
    column = table.columns[request.part]
    meant = np.array([*(PART_NAMES.get(word.lower(), -1) for word in column.names), -1], np.int8)
    if (meant < 0).all() and not request.part_named:
        notes.append(
            f"column {request.part!r} is not used: its values ({', '.join(map(shown, column.names[:3]))}) are not "
            "train, validation or test"
        )
        return parts, known
    parts = meant[column.values]
    known = parts >= 0
    for row in np.flatnonzero(~known).tolist():
        code = int(column.values[row])
        faults.add("rows of an unknown part", table.place(row), column.names[code] if code >= 0 else "none")
    counts = count_parts(parts)
    notes.append(
        f"column {request.part!r} divides the rows: {counts[0]:,} train, {counts[1]:,} validation, {counts[2]:,} test"
        + ("" if request.part_named else "; &part= ignores it")
    )
    return parts, known


def _without_small_classes(
    table: Table, parts: NDArray[np.int8], targets: Targets, faults: Faults
) -> tuple[Table, NDArray[np.int8], Targets]:
    """Without the rows of classes that have too few to train on, which are faults."""
    (head, column), = targets.columns.items()
    trained, numbers, names = trainable_classes(
        column.values.astype(np.int64), parts, column.names, faults, noun="rows", of=f"column {shown(head)!r}"
    )
    kept = np.asarray(trained[column.values])
    codes = numbers[column.values[kept]].astype(np.int32)
    return table.rows(kept), parts[kept], Targets(targets.task, {head: Column(codes, names)}, targets.note)


def _check_categories(features: Mapping[str, Column], request: Request) -> None:
    many = [feature for feature, column in features.items() if len(column.names) > MOST_ONE_HOT]
    if many and request.how == "onehot":
        column = features[many[0]]
        raise WrongData(
            f"column {shown(many[0])!r} has {len(column.names):,} different texts, such as "
            f"{shown(column.names[0])!r}, too many for a column of 0 and 1 each: leave it out with "
            f"&ignore={','.join(many)}, or encode categories as indices of an embedding with &categories=index"
        )


def _write(folder: Path, features: Mapping[str, Column], targets: Targets, parts: NDArray[np.int8]) -> None:
    """Numbers side by side as float64, codes as int32; a row of each is one row of the table."""
    rows = len(parts)
    for prefix, columns in (("", features), ("target_", targets.columns)):
        numbers = [column.values for column in columns.values() if column.is_numeric]
        codes = [column.values for column in columns.values() if not column.is_numeric]
        np.save(folder / f"{prefix}numbers.npy", np.stack(numbers) if numbers else np.zeros((0, rows)))
        np.save(folder / f"{prefix}codes.npy", np.stack(codes) if codes else np.zeros((0, rows), np.int32))
    np.save(folder / "parts.npy", parts)
    np.save(folder / "prints.npy", fingerprints(*(column.values for column in features.values())))


def _about(name: str, column: Column) -> dict[str, Any]:
    return {"name": name, "categories": None if column.is_numeric else list(column.names)}


def _columns(
    heads: list[dict[str, Any]], numbers: NDArray[np.float64], codes: NDArray[np.int32]
) -> Iterator[tuple[str, Column]]:
    number, code = iter(numbers), iter(codes)
    for head in heads:
        names = head["categories"]
        yield head["name"], Column(next(number)) if names is None else Column(next(code), tuple(names))


def _part(
    encoding: Encoding, features: Mapping[str, Column], targets: Mapping[str, Column], task: str,
    chosen: NDArray[np.int64],
) -> ExamplePart:
    def rows(columns: Mapping[str, Column]) -> dict[str, Column]:
        return {head: column.rows(chosen) for head, column in columns.items()}

    wanted = encoding.encode_targets(rows(targets))
    if task == "multi-label":
        wanted = wanted.astype(np.int64)
    elif wanted.ndim == 2 and wanted.shape[1] == 1:
        wanted = wanted[:, 0]
    return ExamplePart(encoding.encode(rows(features)), {TARGET: np.ascontiguousarray(wanted)})


def _check_memory(encoding: Encoding, rows: int) -> None:
    needed = rows * (encoding.width * 4 + len(encoding.indices) * 8)
    if needed > (budget := memory_budget(1 / 2)):
        raise WrongData(
            f"it takes {bytes_text(needed)} of memory encoded, {encoding.width:,} numbers a row, and a "
            f"worker's share of the free memory is {bytes_text(budget)}: name fewer columns with &features=, or encode "
            "categories as indices with &categories=index"
        )


def _done(
    encoding: Encoding, features: Mapping[str, Column], train: NDArray[np.int64], task: str
) -> Iterator[str]:
    """What was done to the columns, as sentences."""
    scaled = [column.name for column in encoding.features if column.how == "scale"]
    if scaled:
        yield f"standardised with the mean and deviation of the training rows: {listed(scaled)}"
    constant = [name for name in scaled if _is_constant(features[name].values[train])]
    if constant:
        yield f"the same in every training row, so that nothing can be learned from it: {listed(constant)}"
    for how, words in (("onehot", "one column of 0 and 1 per category"), ("index", "indices from 1, 0 for none")):
        coded = [column for column in encoding.features if column.how == how]
        if coded:
            heads = ", ".join(f"{shown(column.name)!r} {len(column.categories):,}" for column in coded[:8])
            more = f" and {len(coded) - 8:,} more" if len(coded) > 8 else ""
            yield f"categories as {words}: {heads}{more}"
    for target in encoding.targets if task == "regression" else ():
        if (target.mean, target.deviation) != (0.0, 1.0):
            yield (
                f"target {shown(target.name)!r} is standardised: mean {target.mean:g}, deviation "
                f"{target.deviation:g}; errors are in deviations, and &scale-target=no keeps its own unit"
            )


def _is_constant(values: NDArray[np.float64]) -> bool:
    there = values[~np.isnan(values)]
    return not len(there) or bool((there == there[0]).all())


def _class_names(about: dict[str, Any]) -> tuple[str, ...]:
    """Of the classes, or of the columns of the target."""
    if about["task"] == "classification":
        return tuple(about["targets"][0]["categories"])
    return tuple(target["name"] for target in about["targets"])


def _fields(about: dict[str, Any]) -> tuple[tuple[ArrayField, ...], tuple[ArrayField, ...]]:
    """Inputs and targets as loading makes them."""
    encoding = Encoding(tuple(
        ColumnEncoding(column["name"], "scale" if column["categories"] is None else about["how"],
                       categories=tuple(column["categories"] or ())) for column in about["features"]
    ), ())
    inputs = tuple(ArrayField(name, shape, "int64" if name == INDICES else "float32")
                   for name, shape in encoding.shapes.items())
    count = len(about["targets"])
    return inputs, (ArrayField(TARGET, () if count == 1 else (count,),
                               "float32" if about["task"] == "regression" else "int64"),)


def _takes(path: Path, options: Mapping[str, str]) -> bool:
    """Text files are tables of photographs unless a column is to be predicted."""
    ending = path.suffix.lower()
    return ending in PARQUET or (ending in TEXT and "target" in options)


def _source(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> TableSet:
    return TableSet(name, bad_data, path, tuple(sorted(options.items())))


FORMATS = (PathFormat(_takes, _OPTIONS, _source),)
