"""Photographs named in a table, and Kaggle's fashion products: rows that are right, broken, or lead elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pictures import COLOURS, picture, truncated, write_folders, write_products

from velodrome.data import catalogue
from velodrome.data.base import DataError
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


def write_table(folder: Path, rows: list[tuple[str, str]], head: str = "image,label", mark: str = ",") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "list.csv"
    path.write_text("\n".join([head, *(mark.join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def good_rows(folder: Path) -> list[tuple[str, str]]:
    return [(str(file.relative_to(folder)), file.parent.name) for file in sorted(folder.rglob("*.png"))]


def load(name, bad_data="fail"):
    return catalogue.load(f"path:{name}", seed=1, validation=0.1, bad_data=bad_data)


@pytest.mark.parametrize(
    ("head", "mark", "options"),
    [("image,label", ",", ""), ("\ufefffile;kind", ";", "?image=file&label=kind"), ("image\tlabel", "\t", "")],
)
def test_a_table_says_which_image_is_what(tmp_path, head, mark, options):
    folder = write_folders(tmp_path / "set")
    table = write_table(folder, good_rows(folder), head, mark)
    splits = load(f"{table}{options}")
    assert splits.class_names == ("ant", "bee", "cat")
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 30
    for image, label in zip(splits.train.images, splits.train.labels, strict=True):
        assert tuple(image[3, 3]) == COLOURS[splits.class_names[label]]


def test_a_table_may_name_the_parts(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"{kind},{'test' if file.endswith('9.png') else 'train'}") for file, kind in good_rows(folder)]
    splits = load(f"{write_table(folder, rows, 'image,label,which')}?part=which")
    assert {int(image[0, 0, 2]) for image in splits.test.images} == {9}
    assert len(splits.test) == 3


@pytest.mark.parametrize("column", ["part", "split", "Split", "PART"])
def test_a_column_of_parts_is_used_without_being_named_and_announced(tmp_path, velodrome, column):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"{kind},{'Test' if file.endswith('9.png') else 'train'}") for file, kind in good_rows(folder)]
    table = write_table(folder, rows, f"image,label,{column}")
    splits = load(table)
    assert {int(image[0, 0, 2]) for image in splits.test.images} == {9}
    assert 9 not in {int(image[0, 0, 2]) for part in (splits.train, splits.validation) for image in part.images}
    told = f"column '{column}' divides the rows: 27 train, 0 validation, 3 test; list.csv?part= ignores it"
    assert told in splits.notes
    assert told in velodrome("data", "show", f"path:{table}", "--out", tmp_path / "sheet.png").out
    assert len(load(f"{table}?part=").test) == 6, "a fifth is drawn"


def test_a_column_of_parts_that_names_none_is_not_used_and_that_is_told(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"{kind},fold {place % 2}") for place, (file, kind) in enumerate(good_rows(folder))]
    splits = load(write_table(folder, rows, "image,label,split"))
    assert "column 'split' is not used: its values (fold 0, fold 1) are not train, validation or test" in splits.notes
    assert len(splits.test) == 6


def test_a_column_that_divides_the_rows_by_another_name_is_noticed(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"{kind},{'Val' if file.endswith('9.png') else 'train'}") for file, kind in good_rows(folder)]
    table = write_table(folder, rows, "image,label,subset")
    noticed = "column 'subset' seems to divide the rows, and is not used: list.csv?part=subset divides them by it"
    assert noticed in load(table).notes
    assert noticed not in load(f"{table}?part=subset").notes


def test_a_row_of_an_unknown_part_is_bad_data(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"{kind},{'holdout' if '09' in file else 'train'}") for file, kind in good_rows(folder)]
    table = write_table(folder, rows, "image,label,part")
    with pytest.raises(BadRequest, match=r"rows of an unknown part: 3 \(line 11: holdout"):
        load(table)


def test_a_column_of_parts_may_be_the_label(tmp_path):
    folder = write_folders(tmp_path / "set")
    words = ("test", "train")
    rows = [(file, f"{kind},{words[place % 2]}") for place, (file, kind) in enumerate(good_rows(folder))]
    splits = load(f"{write_table(folder, rows, 'image,label,split')}?label=split")
    assert splits.class_names == ("test", "train")


def test_a_table_cannot_make_us_read_outside_its_folder(tmp_path):
    outside = tmp_path / "secret.png"
    picture((1, 2, 3), 1).save(outside)
    folder = write_folders(tmp_path / "set")
    (folder / "link.png").symlink_to(outside)
    wrong = [(name, "ant") for name in ("../secret.png", str(outside), "link.png", "no.png")]
    rows = [*(row for row in good_rows(folder) if row[0] != "link.png"), *wrong]
    table = write_table(folder, rows)
    with pytest.raises(BadRequest, match=r"outside the table's folder: 4 .*\.\./secret.png: outside.*No such file"):
        load(table)
    assert len(load(table, "skip").notes) == 1


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("ant/00.png", ""), "rows without a label: 1 \\(line 32\\)"),
        (("ant/00.png", "ant,too,many"), "too few or too many cells: 1 \\(line 32: 4 cells instead of 2\\)"),
        (("", "ant"), "line 32: : no name"),
        (("ant", "ant"), "ant: no file"),
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path, row, why):
    folder = write_folders(tmp_path / "set")
    table = write_table(folder, [*good_rows(folder), row])
    with pytest.raises(BadRequest, match=why):
        load(table)
    splits = load(table, "skip")
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 30


@pytest.mark.parametrize("later", ["", '"ant"'])
def test_a_quote_that_is_not_closed_takes_no_other_row_with_it(tmp_path, later):
    folder = write_folders(tmp_path / "set")
    rows = good_rows(folder)
    more = [(rows[0][0], later)] if later else []
    table = write_table(folder, [*rows[:9], (rows[9][0], '"ant'), *rows[10:], *more])
    with pytest.raises(BadRequest, match=r"a quote that is not closed or not doubled: 1 \(line 11: "):
        load(table)
    splits = load(table, "skip")
    assert splits.class_names == ("ant", "bee", "cat")
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 29 + bool(later)


@pytest.mark.timeout(60)
def test_many_quotes_that_are_not_closed_are_refused_with_the_first_of_their_lines(tmp_path):
    """Each of these rows swallows everything to the end of the file, so that all of it would be read for every row."""
    folder = write_folders(tmp_path / "set")
    table = write_table(folder, [*good_rows(folder), *[('x"', '"')] * 30_000])
    for bad_data in ("fail", "skip"):
        with pytest.raises(BadRequest, match=r"a quote that is not closed, the first of them in line 32;"):
            load(table, bad_data)


def test_a_line_break_in_a_label_is_bad_data_and_elsewhere_is_not(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f'{kind},"two\nlines"') for file, kind in good_rows(folder)]
    assert len(load(write_table(folder, rows, "image,label,note")).class_names) == 3
    table = write_table(folder, [*rows, (rows[0][0], '"ant\nbee",x')], "image,label,note")
    with pytest.raises(BadRequest, match=r"line break in the image or the label: 1 \(line 62: ant\\nbee\)"):
        load(table)


def test_a_head_may_hold_a_line_break(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"{kind},x") for file, kind in good_rows(folder)]
    assert len(load(write_table(folder, rows, 'image,label,"a\nnote"')).class_names) == 3
    with pytest.raises(BadRequest, match=r"no column 'label' but image, label\\nof it: name the right one"):
        load(write_table(folder, good_rows(folder), 'image,"label\nof it"'))


def test_a_word_among_numbers_does_not_parse(tmp_path):
    folder = write_folders(tmp_path / "set")
    numbers = {"ant": "0", "bee": "1", "cat": "2"}
    rows = [(file, numbers[kind]) for file, kind in good_rows(folder)]
    table = write_table(folder, [*rows[:-1], (rows[-1][0], "two?")])
    with pytest.raises(BadRequest, match=r"not whole numbers like the others: 1 \(line 31: two\?\)"):
        load(table)
    assert load(table, "skip").class_names == ("0", "1", "2")


def test_a_wrong_column_is_answered_with_the_columns(tmp_path):
    folder = write_folders(tmp_path / "set")
    with pytest.raises(BadRequest, match=r"no column 'label' but image, kind: name the right one as list.csv\?label="):
        load(write_table(folder, good_rows(folder), "image,kind"))


def test_a_column_of_names_is_no_column_of_classes(tmp_path):
    folder = write_folders(tmp_path / "set")
    rows = [(file, f"name {place}") for place, (file, _) in enumerate(good_rows(folder))]
    with pytest.raises(BadRequest, match="every row has a label of its own"):
        load(write_table(folder, rows))


@pytest.mark.parametrize("payload", [b"\xff\xfe\x00image", b""])
def test_what_is_no_table_is_refused(tmp_path, payload):
    (tmp_path / "list.csv").write_bytes(payload)
    with pytest.raises(BadRequest, match=r"list\.csv"):
        load(tmp_path / "list.csv")


@pytest.mark.parametrize("within", ["", "fashion-dataset"])
def test_fashion_products_are_read_with_the_flaws_everybody_has(tmp_path, monkeypatch, within):
    write_products(tmp_path / "mirror" / "fashion-products" / within)
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tmp_path / "mirror"))
    assert catalogue.is_here("fashion-products")
    splits = catalogue.load("fashion-products", seed=1, validation=0.1)
    assert splits.class_names == ("Shirts", "Shoes")
    assert splits.input_shape == (80, 60, 3)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 24
    notes = " ".join(splits.notes)
    for told in ("unquoted commas: 1 (line 2): repaired", "fewer than 10 pictures: 1 (Watches: 3)",
                 "products without a picture: 1 (9999)", "too few or too many cells: 1"):
        assert told in notes
    assert catalogue.describe("fashion-products").train == len(splits.train)


def test_fashion_products_by_another_column(own_cache):
    write_products(own_cache / "fashion-products")
    assert catalogue.load("fashion-products:gender", seed=1, validation=0.1).class_names == ("Men", "Women")
    with pytest.raises(BadRequest, match="the label is one of articleType, gender"):
        catalogue.describe("fashion-products:price")


def test_a_broken_picture_of_the_products_is_still_bad_data(own_cache):
    folder = write_products(own_cache / "fashion-products")
    truncated(folder / "images" / "1002.png")
    (folder / "images" / "1002.png").rename(folder / "images" / "1002.jpg")
    for name in ("fashion-products", "fashion-products:gender"):
        with pytest.raises(BadRequest, match=r"images that cannot be read: 1 \(1002.jpg"):
            catalogue.load(name, seed=1, validation=0.1)
        notes = catalogue.load(name, seed=1, validation=0.1, bad_data="skip").notes
        assert any("images that cannot be read: 1 (1002.jpg" in note for note in notes)


def test_a_table_that_is_not_utf_8_is_told_how_to_convert_it(tmp_path):
    (tmp_path / "list.csv").write_bytes("image,label\na.png,Grün\n".encode("latin-1"))
    with pytest.raises(BadRequest, match=r"byte 20 is not UTF-8; convert it, for example with iconv -f latin1"):
        load(tmp_path / "list.csv")


def test_a_class_of_a_table_without_any_image_is_named(tmp_path):
    folder = write_folders(tmp_path / "set")
    write_table(folder, [*good_rows(folder), ("gone.png", "ghosts"), ("gone-too.png", "ghosts")])
    with pytest.raises(BadRequest, match=r"classes without images: 1 \(ghosts\)"):
        load(folder / "list.csv")
    assert "ghosts" not in load(folder / "list.csv", "skip").class_names


def test_what_was_prepared_from_a_mirror_is_usable_without_it(tmp_path):
    mirror = tmp_path / "mirror"
    write_products(mirror / "fashion-products")
    with using_mirror(str(mirror)):
        catalogue.prepare("fashion-products")
    about = catalogue.describe("fashion-products")
    assert (about.train, about.classes) == (17, 2)
    assert catalogue.is_here("fashion-products")
    catalogue.prepare("fashion-products")
    assert len(catalogue.load("fashion-products", seed=1, validation=0.1).train) == 17
    assert {checked.state for checked in catalogue.verify("fashion-products")} == {"ok"}
    with pytest.raises(DataError, match="must be downloaded manually"):  # by another column, nothing was prepared
        catalogue.prepare("fashion-products:gender")
    with using_mirror(str(mirror)):  # where the source can be reached, its changes count
        (mirror / "fashion-products" / "images" / "1001.jpg").unlink()
        assert len(catalogue.load("fashion-products", seed=1, validation=0.1).train) == 16


def test_without_its_files_fashion_products_say_where_to_put_them(own_cache):
    assert catalogue.describe("fashion-products").train is None
    assert not catalogue.is_here("fashion-products")
    with pytest.raises(DataError, match=r"Kaggle requires an account.*images/ into .*cache/fashion-products"):
        catalogue.prepare("fashion-products")
