"""The contact sheet shows the data set's own pixels, and the counts are those of its parts."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import COLOURS, write_folders
from PIL import Image

from velodrome.data import catalogue
from velodrome.data.examples import ExampleSet, image_part, image_set
from velodrome.data.pictures import class_counts, draw, write
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


def many_classes(count: int, name: str = "many") -> ExampleSet:
    part = image_part(np.full((count * 2, 4, 4, 1), 16, np.uint8), np.repeat(np.arange(count), 2))
    names = tuple(f"class {place} \u30ab \x1b[31m" + "x" * 200 for place in range(count))
    return image_set(name, part, part, part, classes=count, scale=1 / 16, class_names=names)


def test_a_row_shows_its_class_and_nothing_else(tmp_path):
    splits = catalogue.load(f"path:{write_folders(tmp_path / 'set')}", seed=1, validation=0.1)
    sheet = np.asarray(draw(splits, columns=4))
    rows = [np.flatnonzero((sheet == colour).all(axis=2).any(axis=1)) for colour in COLOURS.values()]
    assert all(row.size for row in rows)
    assert rows[0].max() < rows[1].min() <= rows[1].max() < rows[2].min()


def test_pixels_are_scaled_to_full_brightness():
    assert (np.asarray(draw(many_classes(2), columns=1)) == 255).all(axis=2).any()


@pytest.mark.parametrize(("classes", "title"), [(3, 3), (200, 200)])
def test_any_number_of_classes_with_any_names_fits(classes, title):
    sheet = draw(many_classes(classes), columns=3)
    assert sheet.width < 1200
    assert sheet.height < 3000


def test_counts_are_those_of_the_parts():
    counts = class_counts(catalogue.load("digits", seed=1, validation=0.1))
    assert [row["class"] for row in counts] == list("0123456789")
    assert sum(row["train"] for row in counts) == 1294
    assert sum(row["test"] for row in counts) == 359


def test_a_sheet_is_a_png_or_refused(tmp_path):
    sheet = draw(many_classes(2))
    write(sheet, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as again:
        assert again.size == sheet.size
    for path in (tmp_path / "a.txt", tmp_path / "absent" / "a.png"):
        with pytest.raises(BadRequest, match="--out"):
            write(sheet, path)
