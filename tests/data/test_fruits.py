"""The fruits, from their real archive where it is at hand: parts, classes, and the sources they may come from."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.base import DataError
from velodrome.data.sources import archives as fruits

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
MIRROR = os.environ.get("VELODROME_DATA_MIRROR") or (str(BESIDE) if BESIDE.is_dir() else "")
ARCHIVE = Path(MIRROR or "/nowhere") / fruits.FOLDER / fruits.ARCHIVE.name

pytestmark = pytest.mark.unit
real_files = pytest.mark.skipif(not ARCHIVE.is_file(), reason="no mirror with the fruits' archive")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Both ways to look at them, decoded once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VELODROME_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("VELODROME_DATA_MIRROR", MIRROR)
        yield {name: catalogue.load(name, seed=1, validation=0.1) for name in ("fruits", "fruits:variety")}


def test_they_are_described_without_a_file(own_cache):
    for name, classes in (("fruits", 3), ("fruits:variety", 15)):
        about = catalogue.describe(name)
        assert (about.train, about.validation, about.test) == (7360, 1228, 1228)
        assert (about.input_shape, about.classes, about.licence) == ((100, 100, 3), classes, "MIT")
        assert not catalogue.is_here(name)


def test_without_a_source_the_error_says_how_to_get_them(own_cache):
    with pytest.raises(DataError, match=r"could not be fetched.*or clone https://\S+ and name as the mirror a folder"):
        catalogue.load("fruits", seed=1, validation=0.1)


def test_a_folder_that_holds_other_fruits_is_refused(own_cache):
    for part in ("Training", "Test"):
        (own_cache / fruits.FOLDER / part / "Apple Braeburn").mkdir(parents=True)
    with pytest.raises(DataError, match="does not hold the images of the 2020 edition"):
        catalogue.load("fruits", seed=1, validation=0.1)


@real_files
def test_the_publishers_parts_stay_apart(loaded):
    splits = loaded["fruits:variety"]
    with zipfile.ZipFile(ARCHIVE) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
    trained = np.bincount(splits.train.labels)
    held = np.bincount(splits.validation.labels) + np.bincount(splits.test.labels)
    for place, variety in enumerate(splits.class_names):
        assert trained[place] == sum(name.startswith(f"Training/{variety}/") for name in names)
        assert held[place] == sum(name.startswith(f"Test/{variety}/") for name in names)


@real_files
def test_a_picture_is_the_one_that_pillow_reads(loaded):
    from PIL import Image

    with zipfile.ZipFile(ARCHIVE) as archive, archive.open("Training/Apple Braeburn/0_100.jpg") as stream:
        first = np.asarray(Image.open(stream).convert("RGB"))
    assert np.array_equal(loaded["fruits"].train.images[0], first)


@real_files
def test_validation_and_test_are_halves_with_every_variety_in_proportion(loaded):
    splits = loaded["fruits:variety"]
    assert len(splits.validation) == len(splits.test) == 1228
    assert np.abs(np.bincount(splits.validation.labels) - np.bincount(splits.test.labels)).max() <= 1
    kept = {image.tobytes() for image in splits.validation.images}
    assert sum(image.tobytes() in kept for image in splits.test.images) <= 2  # two frames may be equal to the byte


@real_files
def test_the_three_fruits_are_the_varieties_merged(loaded):
    merged, apart = loaded["fruits"], loaded["fruits:variety"]
    assert merged.class_names == ("Apple", "Guava", "Kiwi")
    for part in ("train", "validation", "test"):
        names = [apart.class_names[label].split()[0] for label in getattr(apart, part).labels]
        assert [merged.class_names[label] for label in getattr(merged, part).labels] == names
        assert np.array_equal(getattr(merged, part).images, getattr(apart, part).images)
    mapped = catalogue.load_mapped("fruits", seed=1, validation=0.1)
    assert mapped.class_names == merged.class_names
    assert np.array_equal(mapped.test.labels, merged.test.labels)
    assert np.array_equal(mapped.test.images[:20], merged.test.images[:20])


@real_files
def test_training_pictures_are_mapped_and_not_copied(loaded):
    images = loaded["fruits"].train.images
    while images.base is not None and isinstance(images.base, np.ndarray):
        images = images.base
    assert isinstance(images, np.memmap)
    assert loaded["fruits"].train.images.flags.writeable


@real_files
@pytest.mark.slow
def test_an_unpacked_copy_among_other_fruits_is_as_good(tmp_path, monkeypatch, own_cache, loaded):
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path / "mirror" / fruits.FOLDER)
    (tmp_path / "mirror" / fruits.FOLDER / "Training" / "Banana").mkdir()
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tmp_path / "mirror"))
    splits = catalogue.load("fruits", seed=1, validation=0.5)
    assert np.array_equal(splits.test.images, loaded["fruits"].test.images)
    assert "--validation 0.5 is not used" in splits.notes[0]
