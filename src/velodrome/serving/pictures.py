"""Pictures that strangers send, as bytes of the size that a model takes.

Everything a file claims is checked before it is decoded: bytes, format, pixels, and that it is nothing else besides.
"""

from __future__ import annotations

import io
import re

import numpy as np
from numpy.typing import NDArray

from velodrome.data.images.decode import TooManyPixels, Unreadable, decode
from velodrome.serving.model import BadInput

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
        raise BadInput(f"the file has {len(content):,} bytes, and at most {LARGEST_BYTES:,} are taken", 413)
    kind = _kind_of(content)
    if kind is None:
        raise BadInput("the file is not a picture of a known format: send JPEG, PNG, GIF, WebP or BMP", 415)
    archived = content.find(_ZIP_END, max(0, len(content) - _ZIP_TAIL)) >= 0
    if archived or _OTHERS.search(content, 0, _HEAD) or _has_tail(kind, content):
        raise BadInput("the file is a picture and something else besides: save the picture anew and send that", 415)


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
