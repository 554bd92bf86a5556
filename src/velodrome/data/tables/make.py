"""A table in the cache and out of it: read into columns of numbers and category codes, targets and parts; divided,
standardised and encoded when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import Faults, memory_budget
from velodrome.data.cache import Decoded
from velodrome.data.examples import TARGET, ExamplePart, ExampleSet
from velodrome.data.split import (
    PART_NAMES,
    TEST,
    TRAIN,
    VALIDATION,
    divide,
    large_enough,
    looks_like_parts,
    overlooked_note,
    row_fingerprints,
    with_split_warnings,
)
from velodrome.data.tables.columns import Categories, Column, Numbers, Table, Targets, decide, listed
from velodrome.data.tables.encoding import Encoding, Indexed, Scaled, fit
from velodrome.data.tables.files import Request
from velodrome.errors import BadRequest
from velodrome.machine import process_memory
from velodrome.printable import bytes_text, shown

#: Columns of 0 and 1 that one column of categories may become.
MOST_ONE_HOT = 1_000
#: Bytes of memory for a cell while a table is read: as a number, and in the array that is stored.
_EACH = 24


def make(
    name: str, path: Path, request: Request, folder: Path, faults: Faults, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Write the arrays and return their metadata."""
    notes = list(request.notes)
    table = _read(name, path, request, faults, progress)
    parts, used = _parts(path, table, request, faults, notes)
    kept = used & ~np.logical_or.reduce([table.columns[target].missing for target in request.targets])
    for row in np.flatnonzero(used & ~kept).tolist():
        faults.add("rows without a target", table.place(row))
    table, parts = table.rows(kept), parts[kept]
    targets = decide(name, {target: table.columns[target] for target in request.targets}, request.predict)
    notes.insert(0, targets.note)
    if targets.task == "classification":
        table, parts, targets = _with_large_classes(name, table, parts, targets, faults)
    if not (parts == TRAIN).any():
        raise BadRequest(f"data set {name!r} has no rows to train on{faults.because}")
    features = {feature: table.columns[feature] for feature in request.features}
    _check_categories(name, features, request)
    if missing := {feature: int(column.missing.sum()) for feature, column in features.items() if column.missing.any()}:
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
        "parts": [int((parts == which).sum()) for which in (TRAIN, VALIDATION, TEST)],
        "scale_targets": request.scale_targets and targets.task == "regression",
        "notes": notes, "missing": missing,
    }


def _read(
    name: str, path: Path, request: Request, faults: Faults, progress: Callable[[float], None]
) -> Table:
    if path.suffix.lower() in (".parquet", ".pq"):
        from velodrome.data.tables.files import read_parquet, rows_of

        needed, free = rows_of(path) * len(request.wanted) * _EACH, process_memory()
        if needed > free:
            raise BadRequest(
                f"data set {name!r} takes {bytes_text(needed)} of memory to be read, and {bytes_text(free)} are free: "
                "name fewer columns with &features=, or take a part of the rows"
            )
        read = read_parquet
    else:
        from velodrome.data.tables.files import read_csv

        read = read_csv
    named = (*request.categorical, *((request.part,) if request.part else ()))
    table = read(path, request.wanted, named, faults, progress)
    if not len(table):
        raise BadRequest(f"data set {name!r} has no rows that can be used{faults.because}")
    return table


def _parts(
    path: Path, table: Table, request: Request, faults: Faults, notes: list[str]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The part of each row, and which rows are of a part; without a column of parts all are for training."""
    parts, known = np.full(len(table), TRAIN, np.int8), np.ones(len(table), np.bool_)
    if request.part is None:
        notes += [
            overlooked_note(feature, "used as a feature", f"&part={feature}") for feature in request.features
            if isinstance(column := table.columns[feature], Categories) and looks_like_parts(column.names)
        ]
        return parts, known
    column = table.columns[request.part]
    assert isinstance(column, Categories)
    meant = np.array([*(PART_NAMES.get(word.lower(), -1) for word in column.names), -1], np.int8)
    if (meant < 0).all() and not request.part_named:
        notes.append(
            f"column {request.part!r} is not used: its values ({', '.join(map(shown, column.names[:3]))}) are not "
            "train, validation or test"
        )
        return parts, known
    parts = meant[column.codes]
    known = parts >= 0
    for row in np.flatnonzero(~known).tolist():
        code = int(column.codes[row])
        faults.add("rows of an unknown part", table.place(row), column.names[code] if code >= 0 else "none")
    counts = [int((parts == which).sum()) for which in (TRAIN, VALIDATION, TEST)]
    notes.append(
        f"column {request.part!r} divides the rows: {counts[0]:,} train, {counts[1]:,} validation, {counts[2]:,} test"
        + ("" if request.part_named else "; &part= ignores it")
    )
    return parts, known


def _with_large_classes(
    name: str, table: Table, parts: NDArray[np.int8], targets: Targets, faults: Faults
) -> tuple[Table, NDArray[np.int8], Targets]:
    """Without the rows of classes that have too few to train on, which are faults."""
    (head, column), = targets.columns.items()
    assert isinstance(column, Categories)
    trained = large_enough(column.codes.astype(np.int64), parts, column.names, faults, noun="rows")
    kept = np.asarray(trained[column.codes])
    if trained.sum() < 2:
        raise BadRequest(
            f"data set {name!r}: column {shown(head)!r} has {trained.sum()} classes that can be used, and training "
            f"needs two{faults.because}"
        )
    codes = (np.cumsum(trained) - 1)[column.codes[kept]].astype(np.int32)
    names = tuple(word for word, any_ in zip(column.names, trained, strict=True) if any_)
    return table.rows(kept), parts[kept], Targets(targets.task, {head: Categories(codes, names)}, targets.note)


def _check_categories(name: str, features: Mapping[str, Column], request: Request) -> None:
    many = [
        feature for feature, column in features.items()
        if isinstance(column, Categories) and len(column.names) > MOST_ONE_HOT
    ]
    if many and request.how == "onehot":
        column = features[many[0]]
        assert isinstance(column, Categories)
        raise BadRequest(
            f"data set {name!r}: column {shown(many[0])!r} has {len(column.names):,} different texts, such as "
            f"{shown(column.names[0])!r}, too many for a column of 0 and 1 each: leave it out with "
            f"&ignore={','.join(many)}, or encode categories as indices of an embedding with &categories=index"
        )


def _write(folder: Path, features: Mapping[str, Column], targets: Targets, parts: NDArray[np.int8]) -> None:
    """Numbers side by side as float64, codes as int32; a row of each is one row of the table."""
    rows = len(parts)
    for prefix, columns in (("", features), ("target_", targets.columns)):
        numbers = [column.values for column in columns.values() if isinstance(column, Numbers)]
        codes = [column.codes for column in columns.values() if isinstance(column, Categories)]
        np.save(folder / f"{prefix}numbers.npy", np.stack(numbers) if numbers else np.zeros((0, rows)))
        np.save(folder / f"{prefix}codes.npy", np.stack(codes) if codes else np.zeros((0, rows), np.int32))
    np.save(folder / "parts.npy", parts)
    compared = {
        name: column.values if isinstance(column, Numbers) else column.codes for name, column in features.items()
    }
    np.save(folder / "prints.npy", row_fingerprints(compared, np.arange(rows)))


def _about(name: str, column: Column) -> dict[str, Any]:
    return {"name": name, "categories": list(column.names) if isinstance(column, Categories) else None}


def load(name: str, kept: Decoded, notes: tuple[str, ...], seed: int, validation: float) -> ExampleSet:
    """The rows of a table as arrays, encoded with the statistics of the training rows."""
    about = kept.about
    features = dict(_columns(about["features"], kept.array("numbers"), kept.array("codes")))
    targets = dict(_columns(about["targets"], kept.array("target_numbers"), kept.array("target_codes")))
    parts = np.asarray(kept.array("parts"))
    classes = _classes_of(targets)
    division = divide(np.zeros(len(parts), np.int64) if classes is None else classes, parts, seed, validation)
    encoding = fit(
        {**features, **targets}, list(features), list(targets), division[0], how=about["how"],
        scale_targets=about["scale_targets"],
    )
    _check_memory(name, encoding, len(parts))
    train, validated, test = (_part(encoding, features, targets, about["task"], chosen) for chosen in division)
    names = _names(encoding)
    arrays = ExampleSet(
        name, train, validated, test, classes=len(names) if about["task"] != "regression" else None, class_names=names,
        notes=(*notes, *_done(encoding, features, division[0], about["task"])),
        columns={**encoding.as_json(), "task": about["task"], "missing": about["missing"]},
    )
    prints = kept.array("prints")
    given = np.column_stack([column.values if isinstance(column, Numbers) else column.codes
                             for column in targets.values()])
    return with_split_warnings(arrays, [prints[chosen] for chosen in division], "rows",
                            [given[chosen] for chosen in division])


def _columns(
    heads: list[dict[str, Any]], numbers: NDArray[np.float64], codes: NDArray[np.int32]
) -> Iterator[tuple[str, Column]]:
    number, code = iter(numbers), iter(codes)
    for head in heads:
        names = head["categories"]
        yield head["name"], Numbers(next(number)) if names is None else Categories(next(code), tuple(names))


def _classes_of(targets: Mapping[str, Column]) -> NDArray[np.int64] | None:
    (first, *_) = targets.values()
    return first.codes.astype(np.int64) if isinstance(first, Categories) else None


def _names(encoding: Encoding) -> tuple[str, ...]:
    """Of the classes, or of the columns of the target."""
    first = encoding.targets[0]
    if isinstance(first, Indexed):
        return first.categories
    return tuple(column.name for column in encoding.targets)


def _part(
    encoding: Encoding, features: Mapping[str, Column], targets: Mapping[str, Column], task: str,
    chosen: NDArray[np.int64],
) -> ExamplePart:
    def rows(columns: Mapping[str, Column]) -> dict[str, Column]:
        return {
            head: Numbers(column.values[chosen]) if isinstance(column, Numbers)
            else Categories(column.codes[chosen], column.names) for head, column in columns.items()
        }

    wanted = encoding.encode_targets(rows(targets))
    if task == "multi-label":
        wanted = wanted.astype(np.int64)
    elif wanted.ndim == 2 and wanted.shape[1] == 1:
        wanted = wanted[:, 0]
    return ExamplePart(encoding.encode(rows(features)), {TARGET: np.ascontiguousarray(wanted)})


def _check_memory(name: str, encoding: Encoding, rows: int) -> None:
    needed = rows * (encoding.width * 4 + len(encoding.indices) * 8)
    if needed > (budget := memory_budget(1 / 2)):
        raise BadRequest(
            f"data set {name!r} takes {bytes_text(needed)} of memory encoded, {encoding.width:,} numbers a row, and a "
            f"worker's share of the free memory is {bytes_text(budget)}: name fewer columns with &features=, or encode "
            "categories as indices with &categories=index"
        )


def _done(
    encoding: Encoding, features: Mapping[str, Column], train: NDArray[np.int64], task: str
) -> Iterator[str]:
    """What was done to the columns, as sentences."""
    scaled = [column for column in encoding.features if isinstance(column, Scaled)]
    if scaled:
        yield f"standardised with the mean and deviation of the training rows: {listed([one.name for one in scaled])}"
    constant = [one.name for one in scaled if _is_constant(features[one.name], train)]
    if constant:
        yield f"the same in every training row, so that nothing can be learned from it: {listed(constant)}"
    for how, words in (("onehot", "one column of 0 and 1 per category"), ("index", "indices from 1, 0 for none")):
        coded = [one for one in encoding.features if isinstance(one, Indexed) and one.how == how]
        if coded:
            heads = ", ".join(f"{shown(one.name)!r} {len(one.categories):,}" for one in coded[:8])
            more = f" and {len(coded) - 8:,} more" if len(coded) > 8 else ""
            yield f"categories as {words}: {heads}{more}"
    for target in encoding.targets if task == "regression" else ():
        if isinstance(target, Scaled) and (target.mean, target.deviation) != (0.0, 1.0):
            yield (
                f"target {shown(target.name)!r} is standardised: mean {target.mean:g}, deviation "
                f"{target.deviation:g}; errors are in deviations, and &scale-target=no keeps its own unit"
            )


def _is_constant(column: Column, train: NDArray[np.int64]) -> bool:
    assert isinstance(column, Numbers)
    values = column.values[train]
    there = values[~np.isnan(values)]
    return not len(there) or bool((there == there[0]).all())
