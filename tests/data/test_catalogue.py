"""Names, descriptions and divisions of the data sets; the digits whole, the others with their real files if at hand."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.base import DataError
from velodrome.data.sources.published import read_idx
from velodrome.data.split import divide, held_out, stratified
from velodrome.errors import BadRequest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
MIRROR = os.environ.get("VELODROME_DATA_MIRROR") or (str(BESIDE) if BESIDE.is_dir() else "")
real_files = pytest.mark.skipif(not MIRROR, reason="VELODROME_DATA_MIRROR is not set: no real files to read")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(BadRequest, match=r"no data set 'mnits': did you mean 'mnist' or 'kmnist'"):
        catalogue.describe("mnits")
    for call in (lambda: catalogue.prepare("../x"), lambda: catalogue.load("../x", seed=1, validation=0.1)):
        with pytest.raises(BadRequest, match=r"no data set '../x'"):
            call()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_the_mnist_family_is_described_without_files(name):
    found = catalogue.describe(name)
    assert (found.train, found.validation, found.test) == (54_000, 6_000, 10_000)
    assert (found.input_shape, found.classes) == ((28, 28, 1), 10)
    assert catalogue.describe(name, validation=0).train == 60_000


@pytest.mark.integration
def test_describing_imports_neither_numpy_nor_scikit_learn():
    code = (
        "import sys; from velodrome.data import catalogue; [catalogue.describe(n) for n in catalogue.names()]; "
        "print([m for m in ('numpy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5])
def test_digits_hold_what_their_description_says(share):
    found, splits = catalogue.describe("digits", validation=share), catalogue.load("digits", seed=3, validation=share)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (found.train, found.validation, found.test)
    assert found.train + found.validation + found.test == 1797
    assert splits.input_shape == found.input_shape == (8, 8, 1)
    assert splits.train.images.dtype == np.uint8
    assert splits.train.labels.dtype == np.int64
    assert splits.train.images.max() * splits.scale == 1.0


def test_digits_are_those_of_scikit_learn_each_in_exactly_one_part():
    sklearn = pytest.importorskip("sklearn")

    with gzip.open(Path(sklearn.__file__).parent / "datasets/data/digits.csv.gz", "rt") as lines:
        published = sorted(tuple(int(value) for value in row) for row in csv.reader(lines))
    splits = catalogue.load("digits", seed=1, validation=0.2)
    loaded = [
        (*map(int, image.ravel()), int(label))
        for part in (splits.train, splits.validation, splits.test)
        for image, label in zip(part.images, part.labels, strict=True)
    ]
    assert sorted(loaded) == published


def test_digits_and_their_division_are_the_same_in_every_release():
    splits = catalogue.load("digits", seed=1, validation=0.1)
    digest = hashlib.sha256()
    for part in (splits.train, splits.validation, splits.test):
        digest.update(part.images.tobytes() + part.labels.tobytes())
    assert digest.hexdigest() == "a505fd9a6a056fb059e913ffd15fd2c38a0c89243cc46fcb3f7704118cc8bee3"


@pytest.mark.integration
def test_digits_need_no_other_package():
    code = (
        "import sys; sys.modules['sklearn'] = None; from velodrome.data import catalogue; "
        "print(len(catalogue.load('digits', seed=1, validation=0.1).train))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "1294"


def test_every_part_of_the_digits_has_the_classes_in_proportion():
    splits = catalogue.load("digits", seed=1, validation=0.1)
    everything = sum(np.bincount(part.labels) for part in (splits.train, splits.validation, splits.test))
    for part in (splits.train, splits.validation, splits.test):
        assert np.abs(np.bincount(part.labels) - everything * len(part) / 1797).max() < 2


def test_the_seed_alone_decides_the_division():
    first, again, other = (catalogue.load("digits", seed=seed, validation=0.1) for seed in (5, 5, 6))
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(first, part).images, getattr(again, part).images)
    assert not np.array_equal(first.test.images, other.test.images)


def test_a_bigger_validation_share_leaves_the_test_set_alone():
    small, big = (catalogue.load("digits", seed=5, validation=share) for share in (0.1, 0.4))
    assert np.array_equal(small.test.images, big.test.images)


@pytest.mark.parametrize("count", [0, 1, 7, 33, 99, 100])
def test_stratified_draws_exactly_the_count_and_at_most_one_off_per_class(count):
    labels = np.repeat([0, 1, 2, 4], [50, 30, 19, 1])
    marked = stratified(labels, count, seed=1, purpose=0)
    assert marked.sum() == count
    drawn = np.bincount(labels[marked], minlength=5)
    assert np.abs(drawn - count * np.bincount(labels) / 100).max() < 1


def test_every_example_is_drawn_equally_often():
    labels = np.arange(40) % 4
    times = sum(stratified(labels, 12, seed=seed, purpose=1).astype(int) for seed in range(2000))
    # 2000 draws of 3 out of each class's 10: 600 times each, standard deviation 20
    assert np.abs(times - 600).max() < 100


def test_a_draw_stays_what_it_was_in_earlier_releases():
    labels = np.arange(20) % 2
    assert np.flatnonzero(stratified(labels, 6, seed=1, purpose=2)).tolist() == [5, 6, 9, 14, 15, 18]


@pytest.mark.parametrize(
    ("total", "share", "count"), [(60_000, 0.1, 6_000), (10, 0.001, 1), (10, 0.0, 0), (10, 0.94, 9)]
)
def test_a_share_is_rounded_and_never_vanishes(total, share, count):
    assert held_out(total, share) == count


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, 0.99999])
def test_a_share_that_leaves_nothing_to_train_on_is_refused(share):
    with pytest.raises(BadRequest, match=f"--validation {share}"):
        catalogue.describe("digits", validation=share)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_examples_to_draw_a_test_set_from_are_told_as_that(count):
    with pytest.raises(BadRequest, match=f"there are {count} examples to train on and no test set: a fifth"):
        divide(np.zeros(count, np.int64), np.zeros(count, np.int8), seed=1, validation=0.1)


@pytest.mark.parametrize(
    "payload", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\x01a", b"\0\0\x08\x02\0\0\0\x01", b"\0\0\x08\x01\0\0\0\x05abc"]
)
def test_what_is_no_idx_file_is_refused(payload):
    with pytest.raises(DataError, match="idx file"):
        read_idx(payload)


@real_files
@pytest.mark.parametrize(
    ("name", "first_labels"),
    [
        ("mnist", [7, 2, 1, 0, 4]),
        ("fashion-mnist", [9, 2, 1, 1, 6]),
        ("kmnist", [2, 9, 3, 8, 3]),
    ],
)
def test_the_real_files_load_as_published(name, first_labels, shared_cache, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(shared_cache))
    monkeypatch.setenv("VELODROME_DATA_MIRROR", MIRROR)
    splits = catalogue.load(name, seed=1, validation=0.1)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (54_000, 6_000, 10_000)
    assert splits.test.labels[:5].tolist() == first_labels
    assert np.bincount(splits.test.labels).tolist() == (
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009] if name == "mnist" else [1000] * 10
    )
    assert splits.train.images.max() * splits.scale == 1.0
    for images in (splits.train.images, splits.validation.images, splits.test.images):
        assert images.flags.writeable
        assert images.flags.c_contiguous
