"""Data larger than memory trains as any other; how examples reach a server's workers; what is counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import largest_difference, run
from driver_process import read_data

from velodrome.tasks.correctness_bits import decode

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def on_disk(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data with its images in `.npy` files, which the driver maps instead of reading them."""
    folder = tmp_path_factory.mktemp("mapped")
    with np.load(data) as stored:
        for name in stored.files:
            np.save(folder / f"{name}.npy", stored[name])
    return folder


PLACES = [
    ("single", {}), ("multi-worker-mirrored", {"workers": 2}), ("parameter-server", {"workers": 1}),
    *(pytest.param(strategy, {"workers": 3}, marks=pytest.mark.slow)
      for strategy in ("mirrored", "central-storage", "allreduce")),
]


@pytest.mark.quick("multi-worker-mirrored-*", "parameter-server-*")
@pytest.mark.parametrize(("strategy", "place"), PLACES)
def test_data_on_disk_trains_like_data_in_memory(
    train: Any, make_job: Any, on_disk: Path, tmp_path: Path, strategy: str, place: dict[str, Any]
) -> None:
    in_memory = train(strategy="single")
    streamed = run(make_job(strategy=strategy, **place), on_disk, tmp_path)
    assert largest_difference(in_memory.state, streamed.state) < 1e-9
    assert streamed.result["test"]["correct"] == in_memory.result["test"]["correct"]
    assert streamed.result["confusion"] == in_memory.result["confusion"]
    assert streamed.result["test_answers"] == in_memory.result["test_answers"]


@pytest.mark.parametrize("without", ["worker_data:supported", "worker_data:WorkerData.is_kept"])
def test_examples_that_the_chief_sends_train_like_those_that_workers_read(
    make_job: Any, train: Any, data: Path, tmp_path: Path, without: str
) -> None:
    """Where workers cannot map their files the chief sends a part once, and a large one with the closures."""
    asked = {"strategy": "parameter-server", "workers": 1}
    sent = run(make_job(**asked), data, tmp_path, without=f"velodrome.engines.tensorflow.strategies.{without}")
    read = train(**asked)
    assert largest_difference(sent.state, read.state) < 1e-9
    assert sent.result["confusion"] == read.result["confusion"]
    assert sent.result["test_answers"] == read.result["test_answers"]


def test_tensorflow_still_maps_files_by_their_descriptors() -> None:
    """If this fails, TensorFlow has dropped what `worker_data.py` relies on: training works, but examples are sent."""
    pytest.importorskip("tensorflow")
    from velodrome.data.examples import image_part, image_set
    from velodrome.engines.tensorflow.feed import Source
    from velodrome.engines.tensorflow.strategies import worker_data

    images, labels = np.arange(24, dtype=np.uint8).reshape(3, 4, 2, 1), np.array([2, 0, 1])
    part = image_part(images, labels)
    assert worker_data.supported(), "tf.raw_ops.ImmutableConst or /proc/self/fd is gone"
    worker_data.publish(image_set(name="own", train=part, validation=part, test=part, classes=3, scale=1.0))
    try:
        examples = next(iter(worker_data.dataset("train", Source(part).arrays)))
        assert (np.asarray(examples.inputs["x"]) == images).all()
        assert (np.asarray(examples.targets["y"]) == labels).all()
    finally:
        for descriptor in range(200, 206):
            os.close(descriptor)


def test_windows_of_streamed_data_hold_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    from concurrent.futures import ThreadPoolExecutor

    from velodrome.data.examples import image_part
    from velodrome.engines.tensorflow import feed
    from velodrome.engines.tensorflow.feed import Source, gather_batch
    from velodrome.tasks.schedule import by_data

    images = np.arange(50, dtype=np.uint8)[:, None, None, None] * np.ones((1, 100, 100, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    part = image_part(np.load(tmp_path / "images.npy", mmap_mode="r"), np.arange(50))
    schedule = by_data(50, 8, 3, 1, 1)
    partitions = [schedule.partition(rank) for rank in range(3)]
    seen: list[list[int]] = [[] for _ in partitions]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setattr(feed, "WINDOW_BYTES", 3 * 8 * 30_000)  # three steps
        streamed = feed.StreamedWindows(Source(part), partitions, thread)
        for first, last in ((0, 1), (1, 5), (5, 7)):
            for window in streamed.windows(first, last):
                for mine, batches in zip(seen, window.inputs, strict=True):
                    for step in range(window.first, window.last):
                        batch = gather_batch(batches, step)
                        if int(batch.real):
                            assert (np.asarray(batch.inputs["x"])[:, 0, 0, 0] == np.asarray(batch.targets["y"])).all()
                            mine += np.asarray(batch.targets["y"]).tolist()
    assert [partition.indices.tolist() for partition in partitions] == seen


@pytest.mark.quick("parameter-server-*")
@pytest.mark.parametrize(("strategy", "place"), [
    ("multi-worker-mirrored", {"workers": 2}), ("parameter-server", {"workers": 2}), ("mirrored", {"workers": 3}),
])
def test_the_confusion_counts_every_test_example(
    train: Any, data: Path, strategy: str, place: dict[str, Any]
) -> None:
    result = train(strategy=strategy, optimizer="momentum", dtype="float64", **place).result
    confusion = np.array(result["confusion"])
    labels = read_data(str(data)).test.labels
    assert confusion.sum(axis=1).tolist() == np.bincount(labels, minlength=10).tolist()
    assert np.trace(confusion) == result["test"]["correct"]
    right = decode(result["test_answers"], 31)
    assert np.bincount(labels[right], minlength=10).tolist() == np.diag(confusion).tolist()


@pytest.mark.quick("allreduce-*")
@pytest.mark.parametrize(("strategy", "place"), [
    ("single", {}), ("allreduce", {"workers": 2}), ("parameter-server", {"workers": 1, "servers": 2}),
    *(pytest.param(strategy, {"workers": 2}, marks=pytest.mark.slow)
      for strategy in ("mirrored", "central-storage", "multi-worker-mirrored")),
])
def test_a_step_is_no_longer_than_the_norm_allows(train: Any, strategy: str, place: dict[str, Any]) -> None:
    asked = {"optimizer": "sgd", "learning_rate": 1.0, "steps": 1, "epochs": 1, "dtype": "float64"}
    free, clipped = (train(strategy="single", clip_norm=norm, **asked).state["weights"] for norm in (1e9, 0.01))
    here = train(strategy=strategy, clip_norm=0.01, **asked, **place).state["weights"]
    assert np.abs(here - clipped).max() < 1e-9
    still = train(strategy="single", **(asked | {"learning_rate": 1e-12})).state["weights"]
    assert np.linalg.norm(clipped - still) == pytest.approx(0.01, rel=1e-6)
    # Shortened, and in the same direction.
    moved, shortened = free - still, clipped - still
    assert np.dot(moved, shortened) == pytest.approx(np.linalg.norm(moved) * np.linalg.norm(shortened), rel=1e-6)


def test_allreduce_tells_how_long_it_was_in_collectives(train: Any) -> None:
    ran = train(strategy="allreduce", workers=2, optimizer="sgd", dtype="float32")
    shares = [share for process in ran.processes for share in process.of_kind("shares")]
    assert len(shares) == 2
    assert all(0 < share["collective_seconds"] < share["train_seconds"] for share in shares)


def test_a_process_that_holds_its_data_makes_the_same_calls_as_one_that_reads_it(tmp_path: Path) -> None:
    """Ranks of one job may differ in this, and sums over ranks wait for the same call of everybody."""
    pytest.importorskip("tensorflow")
    from concurrent.futures import ThreadPoolExecutor

    from velodrome.data.examples import image_part
    from velodrome.engines.tensorflow import feed
    from velodrome.engines.tensorflow.feed import Source
    from velodrome.tasks.schedule import by_data

    images = np.zeros((50, 10, 10, 1), np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = image_part(np.load(tmp_path / "images.npy", mmap_mode="r"), np.arange(50))
    partitions = [by_data(50, 8, 2, 1, 1).partition(0)]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setattr(feed, "WINDOW_BYTES", 3 * 8 * 100)  # three steps
        streamed = feed.StreamedWindows(Source(mapped), partitions, thread)
        source = Source(image_part(images, np.arange(50)))
        held = feed.HeldWindows(source, source.tensors(), partitions)
        for first, last in ((0, 1), (1, 5), (5, 7)):
            lengths = [[window.last - window.first for window in source.windows(first, last)]
                       for source in (streamed, held)]
            assert lengths[0] == lengths[1]
