"""Pixels reach a model in the range that was asked for, standardized by the whole training part and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue, pixels
from velodrome.data.base import ChosenRows
from velodrome.data.examples import ExamplePart, ExampleSet, image_part, image_set
from velodrome.data.pixels import measure, transform_of
from velodrome.data.shards.index import INDEX
from velodrome.data.shards.write import write_shards
from velodrome.data.source import Description
from velodrome.data.storage.store import open_store
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.tasks.supervised import Classification

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


def part(count: int, seed: int) -> ExamplePart:
    """Pictures whose channels have different means and deviations."""
    random = np.random.default_rng(seed)
    noise = random.normal((60, 120, 200), (10, 30, 50), (count, 5, 4, 3))
    return image_part(np.clip(noise, 0, 255).astype(np.uint8), np.arange(count) % 3)


SPLITS = image_set("tiny", part(41, 0), part(6, 1), part(9, 2), classes=3, scale=1 / 255, class_names=("a", "b", "c"))


@pytest.fixture
def shards(tmp_path) -> str:
    about = Description("tiny", "Tiny", "none", "", 41, 6, 9, (5, 4, 3), 3)
    write_shards(
        SPLITS, about, open_store(str(tmp_path / "s")), shards=4, encoding="raw", seed=1, validation=0.1
    )
    return f"shards:{tmp_path / 's'}"


def test_unit_byte_and_standardize_are_what_they_are_called():
    images = SPLITS.train.images
    unit, byte, standard = (transform_of(form, SPLITS) for form in ("unit", "byte", "standardize"))
    assert unit(images) == pytest.approx(images / 255, rel=1e-15)
    assert np.array_equal(byte(images), images)
    assert standard(images).mean((0, 1, 2)) == pytest.approx([0, 0, 0], abs=1e-12)
    assert standard(images).std((0, 1, 2)) == pytest.approx([1, 1, 1], abs=1e-12)
    assert transform_of("auto", SPLITS) == unit


def test_bytes_reach_255_whatever_the_data_calls_white():
    digits = catalogue.load("digits", seed=1, validation=0.1)
    assert digits.train.images.max() == 16
    assert transform_of("byte", digits)(digits.train.images).max() == 255


def test_validation_and_test_do_not_take_part_in_the_statistics():
    changed = replace(SPLITS, validation=part(6, 7), test=part(9, 8))
    assert transform_of("standardize", changed) == transform_of("standardize", SPLITS)
    assert transform_of("standardize", replace(SPLITS, train=part(41, 9))) != transform_of("standardize", SPLITS)


def test_a_channel_that_is_the_same_everywhere_becomes_zero():
    images = SPLITS.train.images.copy()
    images[..., 1] = 77
    found = transform_of("standardize", replace(SPLITS, train=image_part(images, SPLITS.train.labels)))(images)
    assert not found[..., 1].any()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("window", [1, 7 * 60, 1 << 20])
def test_statistics_are_the_same_however_the_images_are_stored_and_read(tmp_path, monkeypatch, window):
    monkeypatch.setattr(pixels, "_WINDOW", window)
    images = SPLITS.train.images
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    order = np.random.default_rng(0).permutation(41)
    expected = measure(images)
    assert expected.mean == pytest.approx(images.mean((0, 1, 2)), rel=1e-14)
    assert expected.deviation == pytest.approx(images.std((0, 1, 2)), rel=1e-14)
    assert measure(mapped) == measure(images[order]) == measure(ChosenRows(images, order)) == expected


def loaded(shards: str, rank: int) -> ExampleSet:
    job = Job(dataset=shards, strategy="ddp", workers=2, batch_size=4, pixels="standardize", sharding="file")
    return Classification().load(resolve(job), rank)


def test_workers_that_have_only_their_own_files_standardize_by_the_whole_training_part(shards):
    expected = transform_of("standardize", SPLITS)
    for rank in range(2):
        data = loaded(shards, rank)
        assert data.own_files
        assert len(data.train) < 41
        assert transform_of("standardize", data) == expected


def test_a_set_of_shards_without_statistics_is_read_for_them(shards):
    index = Path(shards.removeprefix("shards:")) / INDEX
    fields = json.loads(index.read_text())
    del fields["statistics"]
    index.write_text(json.dumps(fields))
    assert {transform_of("standardize", loaded(shards, rank)) for rank in range(2)} == {
        transform_of("standardize", SPLITS)
    }


@pytest.mark.parametrize("wrong", [[1.0], [1.0, 2.0, float("nan")], [1.0, 2.0, 256.0], [1.0, 2.0, -1.0]])
def test_statistics_that_cannot_be_those_of_bytes_are_refused(shards, wrong):
    index = Path(shards.removeprefix("shards:")) / INDEX
    fields = json.loads(index.read_text())
    fields["statistics"]["deviation"] = wrong
    index.write_text(json.dumps(fields))
    with pytest.raises(Exception, match="its statistics are not those of 3 channels of bytes"):
        catalogue.describe(shards)
