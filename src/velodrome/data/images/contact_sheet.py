"""A picture of a data set: a row a class with its name, how many there are, and some of them side by side."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from velodrome import files
from velodrome.data.examples import ExampleSet
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: Rows at most; of more classes the largest are drawn.
MOST_CLASSES = 40
_SMALLEST, _LARGEST = 48, 96
_MARGIN, _GAP, _WIDEST_NAME, _TITLE, _LINE = 16, 4, 240, 30, 17
_PAPER, _INK, _GREY = (255, 255, 255), (26, 32, 44), (107, 114, 128)


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
        pen.text((_MARGIN, middle + 2), f"{sizes[place]:,}", fill=_GREY, font=_font(12))
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
