"""Divides, standardises and encodes the cached columns of a table: what training sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.budget import memory_budget
from velodrome.data.cache.decoded import Decoded
from velodrome.data.examples import TARGET, ExamplePart, ExampleSet
from velodrome.data.images.cached_set import divide
from velodrome.data.remarks import with_row_remarks
from velodrome.data.tables.columns import Categories, Column, Numbers
from velodrome.data.tables.encoding import Encoding, Indexed, Scaled, fit
from velodrome.data.tables.targets import listed
from velodrome.errors import BadRequest
from velodrome.printable import bytes_text, shown


def load(name: str, kept: Decoded, notes: tuple[str, ...], seed: int, validation: float) -> ExampleSet:
    """The rows of a table as arrays, encoded with the statistics of the training rows."""
    about = kept.about
    features = dict(_columns(about["features"], kept.array("numbers"), kept.array("codes")))
    targets = dict(_columns(about["targets"], kept.array("target_numbers"), kept.array("target_codes")))
    parts = np.asarray(kept.array("parts"))
    classes = _classes(targets)
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
    return with_row_remarks(arrays, [prints[chosen] for chosen in division], "rows",
                            [given[chosen] for chosen in division])


def _columns(
    heads: list[dict[str, Any]], numbers: NDArray[np.float64], codes: NDArray[np.int32]
) -> Iterator[tuple[str, Column]]:
    number, code = iter(numbers), iter(codes)
    for head in heads:
        names = head["categories"]
        yield head["name"], Numbers(next(number)) if names is None else Categories(next(code), tuple(names))


def _classes(targets: Mapping[str, Column]) -> NDArray[np.int64] | None:
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
