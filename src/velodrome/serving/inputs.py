"""What is sent to a model, as the arrays of its graph: a picture, a row of a table, or numbers by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from velodrome.data.tables.encoding import Encoding, encode_row
from velodrome.errors import BadRequest
from velodrome.models.served import Served
from velodrome.printable import shown
from velodrome.serving import pictures
from velodrome.serving.model import Array, BadInput

#: Numbers of one example, at most; a request is limited in bytes before.
_MOST_NUMBERS = 4_000_000
#: Columns that are named.
_NAMED = 50


def from_picture(about: Served, content: bytes) -> dict[str, Array]:
    """One picture as a batch of one."""
    one = about.inputs[0]
    if len(about.inputs) != 1 or not one.image:
        raise BadInput(f"model {about.model!r} takes no pictures: it was trained on {about.dataset!r}", 415)
    height, width, channels = one.shape
    if channels not in (1, 3):
        raise BadInput(f"model {about.model!r} takes images of {channels} channels, which no picture has", 415)
    if one.dtype == "uint8":
        return {one.name: pictures.decoded(content, (height, width, channels), about.brightest)[None]}
    numbers = pictures.decoded(content, (height, width, channels)).astype(np.float32)
    return {one.name: numbers[None] / np.float32(255)}


def from_fields(about: Served, given: object) -> dict[str, Array]:
    """One example as a batch of one: cells by column, or arrays by the names of the inputs."""
    if not isinstance(given, Mapping):
        raise BadInput("an example is a JSON object: its fields by name")
    if about.encoding is not None:
        return _row(about.encoding, given)
    missing = [one.name for one in about.inputs if one.name not in given]
    unknown = [name for name in given if name not in {one.name for one in about.inputs}]
    if missing or unknown:
        names = ", ".join(repr(one.name) for one in about.inputs)
        wrong = f"{missing[0]!r} is missing" if missing else f"{shown(str(unknown[0]))!r} is no input"
        raise BadInput(f"{wrong}: this model takes {names}")
    return {one.name: _numbers(one.name, given[one.name], one.shape, one.dtype)[None] for one in about.inputs}


def _row(known: Encoding, row: Mapping[Any, Any]) -> dict[str, Array]:
    names = {column.name for column in known.features}
    for name, cell in row.items():
        if name not in names:
            trained = ", ".join(repr(column.name) for column in known.features[:_NAMED])
            raise BadInput(f"no column {shown(str(name))!r}: the model was trained on {trained}"
                           + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""))
        if isinstance(cell, list | dict):
            raise BadInput(f"column {shown(str(name))!r} takes one number or word, not a list or an object")
        if isinstance(cell, float) and not math.isfinite(cell):
            raise BadInput(f"column {shown(str(name))!r} is not a finite number")
    try:
        with np.errstate(over="ignore"):
            encoded = encode_row(known, row)
    except BadRequest as error:
        raise BadInput(str(error)) from None
    for name, array in encoded.items():
        if not np.isfinite(array).all():
            raise BadInput(f"{name!r}: a number of the row is not finite, or too large")
    return encoded


def _check_range(name: str, array: Array, dtype: str) -> None:
    """Refuse what a whole number of this type cannot hold: it would become another one."""
    if np.dtype(dtype).kind not in "iu" or not array.size:
        return
    limits = np.iinfo(dtype)
    if not (np.isfinite(array).all() and array.min() >= limits.min and array.max() <= limits.max):
        raise BadInput(f"input {name!r} takes whole numbers from {limits.min} to {limits.max}")
    if array.dtype.kind == "f" and (array != np.rint(array)).any():
        raise BadInput(f"input {name!r} takes whole numbers, and one of them has a fraction")


def _numbers(name: str, given: Any, shape: tuple[int, ...], dtype: str) -> Array:
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "biuf" or array.size > _MOST_NUMBERS:
            raise ValueError
        _check_range(name, array, dtype)
        array = array.astype(dtype)
    except (ValueError, TypeError, OverflowError):
        raise BadInput(f"input {name!r} takes numbers of shape {shape}") from None
    if array.shape != tuple(shape):
        raise BadInput(f"input {name!r} has shape {array.shape}, and the model takes {tuple(shape)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadInput(f"input {name!r} has numbers that are not finite")
    return array
