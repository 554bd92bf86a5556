"""What is sent to a model, as the arrays of its graph: an uploaded picture, a row of a table, or numbers by name."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.data.own.encoding import Encoding, encode_row
from velodrome.data.pictures import TooManyPixels, Unreadable, decode
from velodrome.errors import BadRequest, shown
from velodrome.models.description import Served
from velodrome.serving.model import Array, BadInput

#: Bytes that a form needs around the file.
FORM_BYTES = 16 << 10
_MOST_PARTS = 16
_BOUNDARY = re.compile(r"boundary=(?:\"([^\"]{1,70})\"|([^\s\";,]{1,70}))", re.IGNORECASE)
_NAME = re.compile(rb"[;\s]name=(?:\"([^\"]*)\"|([^\s;\"]+))", re.IGNORECASE)


def file_of(content_type: str, body: bytes) -> bytes:
    """The one file that was sent, or `BadInput`."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return body
    if kind != "multipart/form-data":
        raise BadInput("send a form with a field 'file' (multipart/form-data), a picture, or JSON", 415)
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise BadInput("the form has no boundary between its fields", 400)
    edge = b"--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(b"\r\n" + edge, _MOST_PARTS + 1)
    if len(parts) > _MOST_PARTS or len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise BadInput("the form is cut off, or has too many fields", 400)
    files = [content for name, content in map(_field, parts[1:-1]) if name == b"file"]
    if len(files) != 1:
        raise BadInput(f"the form has {len(files)} fields 'file', and one is needed", 422)
    return files[0]


def _field(part: bytes) -> tuple[bytes, bytes]:
    head, _, content = part.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-disposition:"):
            name = _NAME.search(line)
            return (name[1] if name[1] is not None else name[2]) if name else b"", content
    return b"", content


LARGEST_BYTES = 16 << 20
MOST_PIXELS = 40_000_000
#: Smaller ones are decoded at once: handing them to a thread would take longer.
SMALL_BYTES = 8 << 10
_SIGNATURES = {
    "PNG": (b"\x89PNG\r\n\x1a\n",), "JPEG": (b"\xff\xd8\xff",), "GIF": (b"GIF87a", b"GIF89a"), "BMP": (b"BM",),
}
#: Beginnings of what a file may be besides a picture, for a program that opens it by another name.
_OTHERS = re.compile(rb"%pdf-|<script|<html|<!doctype|<\?php|<svg|#!/", re.IGNORECASE)
_HEAD, _ZIP_END, _ZIP_TAIL = 1_024, b"PK\x05\x06", 66_000


def decoded(content: bytes, shape: tuple[int, int, int], brightest: float = 255.0) -> NDArray[np.uint8]:
    """A picture held upright and stretched to height, width and channels, or `BadInput`.

    `brightest` is the byte that the data set stores for white.
    """
    _check_file(content)
    height, width, channels = shape
    try:
        pixels = decode(io.BytesIO(content), len(content), height, width, channels, most_pixels=MOST_PIXELS)
    except TooManyPixels as error:
        raise BadInput(f"the picture is too large: {error}; make it smaller", 413) from None
    except Unreadable as error:
        raise BadInput(f"the file is not a picture that can be read: {error}", 415) from None
    if brightest == 255:
        return pixels
    stored: NDArray[np.uint8] = np.rint(pixels.astype(np.float32) * (brightest / 255)).astype(np.uint8)
    return stored


def _check_file(content: bytes) -> None:
    if not content:
        raise BadInput("the file is empty")
    if len(content) > LARGEST_BYTES:
        raise BadInput(f"the file has {len(content):,} bytes, but at most {LARGEST_BYTES:,} are accepted", 413)
    kind = _kind_of(content)
    if kind is None:
        raise BadInput("the file is not a picture of a known format: send JPEG, PNG, GIF, WebP or BMP", 415)
    archived = content.find(_ZIP_END, max(0, len(content) - _ZIP_TAIL)) >= 0
    if archived or _OTHERS.search(content, 0, _HEAD) or _has_tail(kind, content):
        raise BadInput("the file contains more than a picture: save the picture again and send that", 415)


def _kind_of(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    return next((kind for kind, heads in _SIGNATURES.items() if content.startswith(heads)), None)


def _has_tail(kind: str, content: bytes) -> bool:
    """Whether more than padding follows the picture."""
    if kind == "PNG":
        end = _end_of_png(content)
        return end is not None and any(content[end:])
    if kind == "WEBP":
        return any(content[8 + int.from_bytes(content[4:8], "little") + 1 :])
    if kind == "JPEG":
        # Cameras append previews and notes of their own; text and archives are not among them.
        tail = content[content.rfind(b"\xff\xd9") + 2 :].lstrip(b"\0")
        return bool(tail) and (tail[:2] == b"PK" or _OTHERS.search(tail, 0, _HEAD) is not None)
    return False


def _end_of_png(content: bytes) -> int | None:
    """The place behind the last chunk; None where a chunk is cut off, which the decoder reports."""
    place = 8
    while place + 12 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        kind, place = content[place + 4 : place + 8], place + 12 + length
        if kind == b"IEND":
            return place
    return None


#: Numbers of one example, at most; a request is limited in bytes before.
_MOST_NUMBERS = 4_000_000
#: Columns that are named.
_NAMED = 50


def from_picture(about: Served, content: bytes) -> dict[str, Array]:
    """One picture as a batch of one."""
    spec = about.inputs[0]
    if len(about.inputs) != 1 or not spec.image:
        raise BadInput(f"model {about.model!r} takes no pictures: it was trained on {about.dataset!r}", 415)
    height, width, channels = spec.shape
    if channels not in (1, 3):
        raise BadInput(f"model {about.model!r} takes images of {channels} channels, which no picture has", 415)
    if spec.dtype == "uint8":
        return {spec.name: decoded(content, (height, width, channels), about.brightest)[None]}
    numbers = decoded(content, (height, width, channels)).astype(np.float32)
    return {spec.name: numbers[None] / np.float32(255)}


def from_fields(about: Served, given: object) -> dict[str, Array]:
    """One example as a batch of one: cells by column, or arrays by the names of the inputs."""
    if not isinstance(given, Mapping):
        raise BadInput("an example is a JSON object: its fields by name")
    if about.encoding is not None:
        return _row(about.encoding, given)
    missing = [spec.name for spec in about.inputs if spec.name not in given]
    unknown = [name for name in given if name not in {spec.name for spec in about.inputs}]
    if missing or unknown:
        names = ", ".join(repr(spec.name) for spec in about.inputs)
        wrong = f"{missing[0]!r} is missing" if missing else f"{shown(str(unknown[0]))!r} is not an input"
        raise BadInput(f"{wrong}: this model takes {names}")
    return {spec.name: _numbers(spec.name, given[spec.name], spec.shape, spec.dtype)[None]
            for spec in about.inputs}


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
