"""Decodes image files into arrays of bytes, several at a time. What a file claims is checked before it is decoded.

Pillow releases the GIL while it decodes and resizes, so threads use every core.
"""

from __future__ import annotations

import os
import threading
import warnings
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from velodrome.data.storage.trees import File, Tree

#: Formats of photographs and drawings; Pillow knows further ones that start other programs.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
LARGEST_FILE = 256 << 20
#: As many as Pillow itself takes without a warning.
MOST_PIXELS = 89_478_485
_ORIENTATION = 0x0112
#: Where Pillow finds the orientation.
_NOTES = frozenset({"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"})
_GREY = {"1", "L", "LA", "I;16", "I;16B", "I;16L", "I;16N"}
_COLOUR = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}
_CHUNK = 32
#: What opening a file raises; in an archive its entry may be damaged, or packed in a way that Python cannot unpack.
_NOT_OPENED = (OSError, zipfile.BadZipFile, NotImplementedError)
#: Larger images are decoded one at a time, so that as many of them as there are threads do not fill the memory.
LARGE_PIXELS = 16 << 20
ONE_LARGE = threading.Lock()

# Between one and two times the limit Pillow only warns, and we want none of it.
warnings.simplefilter("error", Image.DecompressionBombWarning)
# What is odd about a file and does not stop it from being read is not worth a line each.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class Unreadable(Exception):
    """Why a file is not a usable image, as the end of a sentence."""


class TooManyPixels(Unreadable):
    """It claims to be larger than what is decoded."""


@dataclass(frozen=True)
class Look:
    """What the header of an image file says."""

    height: int
    width: int
    channels: int


def look(stream: IO[bytes], size: int) -> Look:
    """Size and channels as they are when the picture is held upright, without decoding it."""
    try:
        with _opened(stream, size) as image:
            turned = _may_be_turned(image) and image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            width, height = image.size[::-1] if turned else image.size
            return Look(height, width, 1 if image.mode in _GREY else 3)
    except Unreadable:
        raise
    except Exception as error:  # a damaged file may raise anything at all in a decoder
        raise Unreadable(_reason(error)) from None


def decode(
    stream: IO[bytes], size: int, height: int, width: int, channels: int, *, most_pixels: int = MOST_PIXELS
) -> NDArray[np.uint8]:
    """The picture held upright, in grey or in colour, stretched to height and width if it has others."""
    try:
        with _opened(stream, size, most_pixels) as image:
            if min(image.width // max(1, width), image.height // max(1, height)) >= 2:
                image.draft(image.mode, (2 * width, 2 * height))  # a JPEG decodes to a half or quarter for free
            with _exclusive_if_large(image):
                image.load()
                if _may_be_turned(image):
                    ImageOps.exif_transpose(image, in_place=True)
                upright = _plain(image, channels)
                if upright.size != (width, height):
                    upright = upright.resize((width, height), Image.Resampling.BILINEAR)
                return np.asarray(upright, dtype=np.uint8).reshape(height, width, channels)
    except Unreadable:
        raise
    except Exception as error:  # a damaged file may raise anything at all in a decoder
        if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
            raise TooManyPixels(f"more than {most_pixels:,} pixels") from None
        raise Unreadable(_reason(error)) from None


def _exclusive_if_large(image: Image.Image) -> AbstractContextManager[object]:
    return ONE_LARGE if image.width * image.height > LARGE_PIXELS else nullcontext()


def _may_be_turned(image: Image.Image) -> bool:
    """Cameras write these, into notes that many files lack; for a PNG the whole image would have to be decoded."""
    return image.format == "TIFF" or (image.format in ("JPEG", "WEBP") and not _NOTES.isdisjoint(image.info))


def _opened(stream: IO[bytes], size: int, most_pixels: int = MOST_PIXELS) -> Image.Image:
    if size == 0:
        raise Unreadable("empty file")
    if size > LARGEST_FILE:
        raise Unreadable(f"{size:,} bytes, more than {LARGEST_FILE:,}")
    image = Image.open(stream, formats=FORMATS)
    if image.width * image.height > most_pixels:
        raise TooManyPixels(f"{image.width}×{image.height}, more than {most_pixels:,} pixels")
    if image.mode not in _GREY | _COLOUR:
        raise Unreadable(f"pixels of kind {image.mode!r}")
    return image


def _plain(image: Image.Image, channels: int) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {MOST_PIXELS:,} pixels"
    if isinstance(error, UnidentifiedImageError):
        return "no image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def look_at_all(tree: Tree, files: Sequence[File], advance: Callable[[int], None]) -> list[Look | str]:
    """What every file's header says, or why it cannot be read."""
    looks: list[Look | str] = [""] * len(files)

    def look_at(place: int) -> None:
        try:
            with tree.open(files[place].name) as stream:
                looks[place] = look(stream, files[place].bytes)
        except Unreadable as error:
            looks[place] = str(error)
        except _NOT_OPENED as error:
            looks[place] = _reason(error)

    _in_threads(look_at, files, advance)
    return looks


def decode_all(
    tree: Tree, files: Sequence[File], images: NDArray[np.uint8], advance: Callable[[int], None]
) -> dict[int, str]:
    """Decode every file into its row of `images`; return the rows that failed, with the reasons."""
    height, width, channels = images.shape[1:]
    failed: dict[int, str] = {}

    def decode_into_row(place: int) -> None:
        try:
            with tree.open(files[place].name) as stream:
                images[place] = decode(stream, files[place].bytes, height, width, channels)
        except Unreadable as error:
            failed[place] = str(error)
        except _NOT_OPENED as error:
            failed[place] = _reason(error)

    _in_threads(decode_into_row, files, advance)
    return dict(sorted(failed.items()))


def _in_threads(work: Callable[[int], None], files: Sequence[File], advance: Callable[[int], None]) -> None:
    def some(first: int) -> int:
        last = min(first + _CHUNK, len(files))
        for place in range(first, last):
            work(place)
        return sum(file.bytes for file in files[first:last])

    pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None)
    try:
        done = 0
        for future in as_completed([pool.submit(some, first) for first in range(0, len(files), _CHUNK)]):
            done += future.result()
            advance(done)
    finally:
        pool.shutdown(cancel_futures=True)
