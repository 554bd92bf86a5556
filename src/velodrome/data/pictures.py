"""Image files: decoded into arrays of bytes, several at a time, and drawn on a sheet that shows a data set.

What a file claims is checked before it is decoded. Pillow releases the GIL while it decodes and resizes, so threads use
every core.
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
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from velodrome import files
from velodrome.data.examples import ExampleSet
from velodrome.data.storage.trees import File, Tree
from velodrome.errors import BadRequest, shown

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
class Header:
    """What the header of an image file says."""

    height: int
    width: int
    channels: int


def read_header(stream: IO[bytes], size: int) -> Header:
    """Size and channels as they are when the picture is held upright, without decoding it."""
    try:
        with _opened(stream, size) as image:
            turned = _may_be_turned(image) and image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            width, height = image.size[::-1] if turned else image.size
            return Header(height, width, 1 if image.mode in _GREY else 3)
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


def read_headers(
    tree: Tree, files: Sequence[File], advance: Callable[[int], None]
) -> tuple[dict[int, Header], dict[int, str]]:
    """What the headers say by the places of the files, and why some cannot be read."""
    headers: dict[int, Header] = {}

    def read(place: int) -> None:
        with tree.open(files[place].name) as stream:
            headers[place] = read_header(stream, files[place].bytes)

    failed = _each_in_threads(read, files, advance)
    return dict(sorted(headers.items())), failed


def decode_all(
    tree: Tree, files: Sequence[File], images: NDArray[np.uint8], advance: Callable[[int], None]
) -> dict[int, str]:
    """Decode every file into its row of `images`; return the rows that failed, with the reasons."""
    height, width, channels = images.shape[1:]

    def decode_into_row(place: int) -> None:
        with tree.open(files[place].name) as stream:
            images[place] = decode(stream, files[place].bytes, height, width, channels)

    return _each_in_threads(decode_into_row, files, advance)


def _each_in_threads(
    work: Callable[[int], None], files: Sequence[File], advance: Callable[[int], None]
) -> dict[int, str]:
    """Call `work` with the place of every file; the places of those that cannot be read, with the reasons."""
    failed: dict[int, str] = {}

    def some(first: int) -> int:
        last = min(first + _CHUNK, len(files))
        for place in range(first, last):
            try:
                work(place)
            except Unreadable as error:
                failed[place] = str(error)
            except _NOT_OPENED as error:
                failed[place] = _reason(error)
        return sum(file.bytes for file in files[first:last])

    pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None)
    try:
        done = 0
        for future in as_completed([pool.submit(some, first) for first in range(0, len(files), _CHUNK)]):
            done += future.result()
            advance(done)
    finally:
        pool.shutdown(cancel_futures=True)
    return dict(sorted(failed.items()))


#: Rows at most; of more classes the largest are drawn.
MOST_CLASSES = 40
_SMALLEST, _LARGEST = 48, 96
_MARGIN, _GAP, _WIDEST_NAME, _TITLE, _LINE = 16, 4, 240, 30, 17
_PAPER, _INK, _SHADE = (255, 255, 255), (26, 32, 44), (107, 114, 128)


def class_counts(splits: ExampleSet) -> list[dict[str, object]]:
    """Of every class its name and how many examples each part has."""
    names = splits.class_names or tuple(str(place) for place in range(splits.class_count))
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    counts = {part: np.bincount(whole.labels, minlength=splits.class_count) for part, whole in parts.items()}
    return [
        {"class": name, **{part: int(counted[place]) for part, counted in counts.items()}}
        for place, name in enumerate(names)
    ]


def draw(splits: ExampleSet, columns: int = 12) -> Image.Image:
    """The sheet, with training examples evenly spread over each class."""
    sizes = np.bincount(splits.train.labels, minlength=splits.class_count)
    drawn = np.sort(np.argsort(-sizes, kind="stable")[:MOST_CLASSES])
    names = splits.class_names or tuple(str(place) for place in range(splits.class_count))
    height, width = _tile(splits.input_shape)
    pen = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    labels = [_cut(pen, shown(names[place]), _font(14), _WIDEST_NAME) for place in drawn]
    beside = 12 + max(60, *(int(pen.textlength(label, font=_font(14))) for label in labels))
    across = 2 * _MARGIN + beside + columns * (width + _GAP) - _GAP
    down = 2 * _MARGIN + _TITLE + len(drawn) * (height + _GAP) - _GAP
    sheet = Image.new("RGB", (across, down), _PAPER)
    pen = ImageDraw.Draw(sheet)
    few = "" if len(drawn) == splits.class_count else f", the {len(drawn)} largest"
    title = f"{shown(splits.name)}: {len(splits.train):,} to train on, {splits.class_count} classes{few}"
    pen.text((_MARGIN, _MARGIN - 4), _cut(pen, title, _font(16), across - 2 * _MARGIN), fill=_INK, font=_font(16))
    for row, place in enumerate(drawn):
        top = _MARGIN + _TITLE + row * (height + _GAP)
        middle = top + height // 2
        pen.text((_MARGIN, middle - _LINE), labels[row], fill=_INK, font=_font(14))
        pen.text((_MARGIN, middle + 2), f"{sizes[place]:,}", fill=_SHADE, font=_font(12))
        mine = np.flatnonzero(splits.train.labels == place)
        chosen = mine[np.linspace(0, len(mine) - 1, min(columns, len(mine))).astype(np.int64)]
        for column, example in enumerate(chosen):
            left = _MARGIN + beside + column * (width + _GAP)
            sheet.paste(_picture(splits.train.images[example], splits.scale, width, height), (left, top))
    return sheet


def write(sheet: Image.Image, path: Path) -> None:
    """Store a sheet as PNG, at once and whole."""
    if path.suffix.lower() != ".png":
        raise BadRequest(f"--out {str(path)!r}: the sheet is a PNG; give a name that ends in .png")
    try:
        with files.atomic_path(path, shared=True) as partial:
            sheet.save(partial, format="PNG", optimize=True)
    except OSError as error:
        raise BadRequest(f"--out {str(path)!r}: cannot write there: {error.strerror or error}") from None


def _tile(shape: tuple[int, int, int]) -> tuple[int, int]:
    """Height and width of a drawn example: whole multiples of small ones, so that pixels stay square."""
    height, width, _ = shape
    longest = max(height, width)
    if longest < _SMALLEST:
        times = -(-_SMALLEST // longest)
        return height * times, width * times
    factor = min(1.0, _LARGEST / longest)
    return max(1, round(height * factor)), max(1, round(width * factor))


def _picture(pixels: NDArray[np.uint8], scale: float, width: int, height: int) -> Image.Image:
    bright = np.clip(np.rint(pixels.astype(np.float64) * scale * 255), 0, 255).astype(np.uint8)
    plain = bright[..., :3] if bright.shape[-1] >= 3 else np.repeat(bright[..., :1], 3, axis=-1)
    image = Image.fromarray(np.ascontiguousarray(plain))
    larger = width >= image.width
    return image.resize((width, height), Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font that comes with matplotlib, which knows many alphabets."""
    package = find_spec("matplotlib")
    if package and package.origin:
        file = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if file.exists():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size)


def _cut(
    pen: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> str:
    """As much of a text as fits."""
    if pen.textlength(text, font=font) <= width:
        return text
    while text and pen.textlength(f"{text}…", font=font) > width:
        text = text[:-1]
    return f"{text}…"
