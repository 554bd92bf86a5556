"""What makes a division misleading is counted and told: pictures in two parts, doubtful labels, untested classes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_idx as tiny
from pictures import COLOURS, picture, write_folders

from velodrome.data import cache, catalogue
from velodrome.data.split import fingerprints
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


def load(name, bad_data="fail", seed=1, validation=0.1):
    return catalogue.load(name, seed=seed, validation=validation, bad_data=bad_data)


def write_parts(top: Path, **each: range) -> Path:
    """Folders for parts, with the numbered pictures of each class in them."""
    for part, numbers in each.items():
        for name, colour in COLOURS.items():
            (top / part / name).mkdir(parents=True)
            for number in numbers:
                picture(colour, number).save(top / part / name / f"{number}.png")
    return top


def test_fingerprints_tell_pictures_apart_by_every_pixel(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (500, 4, 5, 3), dtype=np.uint8)
    images[7] = images[3]
    images[9] = images[3]
    images[9, 3, 4, 2] ^= 1
    prints = fingerprints(images)
    assert len(set(prints.tolist())) == 499
    assert prints[7] == prints[3] != prints[9]
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert np.array_equal(fingerprints(mapped, rows=np.array([9, 3])), prints[[9, 3]])


def test_pictures_that_are_in_two_parts_are_counted(tmp_path, velodrome):
    folder = write_parts(tmp_path / "set", train=range(8), validation=range(7, 10), test=range(8, 13))
    # Another file, name and format, and the same pixels.
    picture(COLOURS["ant"], 0).save(folder / "test" / "ant" / "renamed.bmp")
    told = [
        "1 of 16 test images is also in the training set, pixel by pixel",
        "3 of 9 validation images are also in the training set, pixel by pixel",
        "6 of 16 test images are also in the validation set, pixel by pixel",
    ]
    for _ in ("decoded now", "from the cache"):
        notes = load(f"path:{folder}").notes
        assert [note.split(":")[0] for note in notes] == told
    shown = velodrome("data", "show", f"path:{folder}", "--out", tmp_path / "sheet.png").out
    assert told[0] in shown


def test_one_picture_with_two_labels_is_counted(tmp_path):
    folder = write_folders(tmp_path / "photos")
    for number in range(2):
        shutil.copy(folder / "ant" / f"0{number}.png", folder / "bee" / f"again{number}.png")
    shutil.copy(folder / "ant" / "00.png", folder / "cat" / "again.png")
    shutil.copy(folder / "cat" / "05.png", folder / "cat" / "same label.png")
    (note,) = [note for note in load(f"path:{folder}").notes if "different labels" in note]
    assert note == "2 images occur with different labels, in 5 examples: at most one label of each can be right"


def test_rows_of_a_table_that_name_one_file_twice_are_counted(tmp_path):
    folder = write_folders(tmp_path / "photos")
    rows = [f"{file.relative_to(folder)},{file.parent.name},train" for file in sorted(folder.rglob("*.png"))]
    table = folder / "list.csv"
    table.write_text("\n".join(["image,label,part", *rows, "ant/00.png,ant,test", "bee/00.png,ant,test"]))
    notes = " ".join(load(f"path:{table}").notes)
    assert "2 of 2 test images are also in the training set" in notes
    assert "1 image occurs with different labels, in 2 examples" in notes


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 4, 5), dtype=np.uint8)
    labels = np.arange(60) % 3
    given = {"x_train": images[:45], "y_train": labels[:45], "x_test": images[45:].copy(), "y_test": labels[45:].copy()}
    given["x_test"][:4] = images[:4]
    given["y_test"][0] = (given["y_test"][0] + 1) % 3
    return given


def test_rows_of_arrays_are_compared_too(tmp_path):
    np.savez(tmp_path / "set.npz", **arrays())
    leaked, doubtful = load(f"path:{tmp_path / 'set.npz'}", validation=0.0).notes
    assert leaked.startswith("4 of 15 test images are also in the training set, pixel by pixel")
    assert doubtful.startswith("1 image occurs with different labels, in 2 examples")


def test_and_those_of_a_function(tmp_path, monkeypatch):
    np.savez(tmp_path / "arrays.npz", **arrays())
    (tmp_path / "leaky_data.py").write_text("import numpy\ndef load(): return dict(numpy.load('arrays.npz'))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    leaked, doubtful = load("leaky_data:load", validation=0.0).notes
    assert leaked.startswith("4 of 15 test images are also in the training set, pixel by pixel")
    assert doubtful.startswith("1 image occurs with different labels, in 2 examples")


def test_shards_remember_what_was_found_when_they_were_written(tmp_path, velodrome):
    folder = write_parts(tmp_path / "set", train=range(8), validation=range(8, 10), test=range(7, 10))
    done = velodrome("data", "shard", f"path:{folder}", "--shards", 2, "--to", tmp_path / "shards")
    assert done.code == 0, done.text
    for files in (None, [1]):
        notes = (
            load(f"shards:{tmp_path / 'shards'}") if files is None
            else catalogue.data_set(f"shards:{tmp_path / 'shards'}").load_files(files, 0.1)
        ).notes
        assert [note.split(":")[0] for note in notes] == [
            "3 of 9 test images are also in the training set, pixel by pixel",
            "6 of 9 test images are also in the validation set, pixel by pixel",
        ]


def test_digits_hold_no_picture_twice():
    for seed in range(3):
        assert load("digits", seed=seed).notes == ()


def test_sets_of_the_mnist_family_are_looked_at_once(tmp_path, monkeypatch):
    images, labels, test_images, test_labels = tiny.arrays()
    test_images[3] = images[5]
    monkeypatch.setattr(tiny, "arrays", lambda *_: [images, labels, test_images, test_labels])
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "mirror")))
    first = tiny.data_set().load(1, 0.1).notes
    assert len(first) >= 1
    assert first[0].startswith("1 of 20 test images is also in the ")
    monkeypatch.setattr("velodrome.data.split.fingerprints", None)
    assert tiny.data_set().load(1, 0.1).notes == first


def test_a_cache_that_cannot_be_written_is_no_reason_not_to_load(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "mirror")))
    data = tiny.data_set()
    data.prepare()

    def full(*arguments, **options):
        raise cache.DataError("no space")

    monkeypatch.setattr(cache, "keep", full)
    assert len(data.load(1, 0.1).train) == 36


def test_classes_without_test_examples_are_told(tmp_path):
    folder = write_parts(tmp_path / "set", train=range(8), test=range(8, 10))
    shutil.rmtree(folder / "test" / "bee")
    assert "classes without test examples: 1 (bee): test results say nothing about them" in load(f"path:{folder}").notes


def test_classes_that_the_division_leaves_without_training_examples_are_told(tmp_path):
    folder = write_folders(tmp_path / "photos")
    for number in range(3, 10):
        (folder / "bee" / f"0{number}.png").unlink()
    notes = load(f"path:{folder}", validation=0.9).notes
    assert any(note.startswith("classes without training examples: 1 (bee): they are never learned") for note in notes)


@pytest.mark.parametrize(("parts", "fewest"), [((), 3), (("test",), 2), (("validation", "test"), 1)])
def test_a_class_needs_an_image_for_training_and_for_every_part_that_is_drawn(tmp_path, parts, fewest):
    top = tmp_path / "set"
    write_parts(top, train=range(8), **dict.fromkeys(parts, range(8, 10)))
    shutil.rmtree(top / "train" / "bee")
    (top / "train" / "bee").mkdir()
    folder = top if parts else top / "train"
    for number in range(fewest):
        wrong = rf"classes with fewer than {fewest} training images: 1 \(bee: {number}\)" if number else "bee"
        with pytest.raises(BadRequest, match=wrong):
            load(f"path:{folder}")
        assert load(f"path:{folder}", "skip").class_names == ("ant", "cat")
        picture(COLOURS["bee"], number).save(top / "train" / "bee" / f"{number}.png")
    assert load(f"path:{folder}").class_names == ("ant", "bee", "cat")


def write_rows(path: Path, rows: list[list[object]]) -> Path:
    path.write_text("\n".join(["area,rooms,kind,part", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_the_same_row_of_a_table_in_two_parts_and_with_two_labels_is_counted(tmp_path):
    rows = [[place * 1.5, place % 4, "ab"[place % 2], "train" if place < 40 else "test"] for place in range(50)]
    path = write_rows(tmp_path / "clean.csv", rows)
    clean = catalogue.load_examples(f"path:{path}?target=kind", seed=1, validation=0.0)
    assert not any("also in" in note or "different labels" in note for note in clean.notes)
    rows[45][:3], rows[46][:2] = rows[7][:3], rows[8][:2]
    rows[46][2] = "b"
    path = write_rows(tmp_path / "leak.csv", rows)
    notes = catalogue.load_examples(f"path:{path}?target=kind", seed=1, validation=0.0).notes
    assert any(note.startswith("2 of 10 test rows are also in the training set, number by number") for note in notes)
    assert "1 row occurs with different labels, in 2 examples: at most one label of each can be right" in notes


def test_a_table_of_a_few_categories_repeats_itself_without_a_warning(tmp_path):
    rows = [[place % 3, place % 2, "ab"[place % 2], "train" if place < 40 else "test"] for place in range(50)]
    path = write_rows(tmp_path / "few.csv", rows)
    notes = catalogue.load_examples(f"path:{path}?target=kind", seed=1, validation=0.0).notes
    assert not any("also in" in note for note in notes)


def test_the_same_array_in_two_parts_and_a_class_that_is_not_tested_are_reported(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    y = np.arange(40) % 3
    tested, known = np.concatenate([x[:3], -x[:5]]), y[:8] < 2
    np.savez(tmp_path / "set.npz", x_train=x, y_train=y, x_test=tested[known], y_test=y[:8][known])
    notes = catalogue.load_examples(f"path:{tmp_path / 'set.npz'}", seed=1, validation=0.0).notes
    assert any(note.startswith("2 of 6 test examples are also in the training set, number by number") for note in notes)
    assert any(note.startswith("classes without test examples: 1 (2)") for note in notes)
