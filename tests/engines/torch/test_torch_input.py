"""Data on disk trains like data in memory; gradients are shortened as a whole; what is counted besides accuracy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, run, write_data
from driver_process import read_data

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

STRATEGIES = [("single", 1), ("ddp", 3), ("allreduce", 2)]


def job(strategy="single", workers=1, **changes) -> Job:
    base = {"model": "dense-128", "optimizer": "sgd", "dtype": "float64", "batch_size": 22, "epochs": 3}
    return Job(**(base | {"strategy": strategy, "workers": workers} | changes))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def on_disk(data, tmp_path_factory) -> Path:
    """The same data with its images in `.npy` files, which the driver maps instead of reading them."""
    folder = tmp_path_factory.mktemp("mapped")
    with np.load(data) as stored:
        for name in stored.files:
            np.save(folder / f"{name}.npy", stored[name])
    return folder


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    return run(job(), data, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_data_on_disk_trains_like_data_in_memory(alone, on_disk, tmp_path, strategy, workers):
    streamed = run(job(strategy, workers), on_disk, tmp_path)
    assert largest_difference(alone.state, streamed.state, "model.") < 1e-9
    assert streamed.result["test"]["correct"] == alone.result["test"]["correct"]
    assert streamed.result["confusion"] == alone.result["confusion"]
    assert streamed.result["test_answers"] == alone.result["test_answers"]


@pytest.mark.parametrize("channels_last", [True, False])
def test_windows_of_data_on_disk_hold_every_step_once(tmp_path, monkeypatch, channels_last):
    from velodrome.data.examples import image_part, image_set
    from velodrome.data.pixels import PixelTransform
    from velodrome.engines.torch.feed import Columns, PrefetchedPart, part_of
    from velodrome.tasks import schedule
    from velodrome.tasks.schedule import by_data

    images = np.arange(50, dtype=np.uint8)[:, None, None, None] * np.ones((1, 10, 9, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    part = image_part(np.load(tmp_path / "images.npy", mmap_mode="r"), np.arange(50))
    monkeypatch.setattr(schedule, "WINDOW_BYTES", 3 * 4 * 278)  # four steps, and a few bytes
    plain, cpu = PixelTransform("byte", (1.0,), (0.0,)), torch.device("cpu")
    data = image_set("mapped", part, part, part, classes=50)
    streamed = part_of(part, Columns(data, torch.float64, cpu, channels_last=channels_last, pixels=plain), cpu)
    assert isinstance(streamed, PrefetchedPart)
    for epoch in (1, 2):
        partition = by_data(50, 8, 3, 1, epoch).partition(2)
        streamed.begin(partition.indices, partition.offsets)
        for step in range(partition.steps):
            low, high = partition.offsets[step], partition.offsets[step + 1]
            if high > low:
                chosen = streamed.batch(low, high)
                assert chosen.x.shape == (high - low, 3, 10, 9)
                assert chosen.x[:, 1, 2, 3].tolist() == chosen.y.tolist() == partition.step(step).tolist()


@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_gradients_are_shortened_after_the_sum_over_workers(data, tmp_path, strategy, workers):
    """Steps of a length that is known: rate times the norm."""
    from velodrome.models import torch_zoo

    ran = run(job(strategy, workers, clip_norm=0.01, learning_rate=2.0, steps=1), data, tmp_path)
    torch.manual_seed(1)
    before = torch_zoo.build("dense-128", (1, 8, 8), 10).double().state_dict()
    moved = sum(float(((ran.state[f"model.{name}"] - value.numpy()) ** 2).sum()) for name, value in before.items())
    assert moved**0.5 == pytest.approx(0.02, rel=1e-9)


@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_a_norm_that_is_never_reached_changes_nothing(alone, data, tmp_path, strategy, workers):
    ran = run(job(strategy, workers, clip_norm=1e6), data, tmp_path)
    assert largest_difference(alone.state, ran.state, "model.") < 1e-9


def test_the_confusion_counts_every_test_example_by_its_true_class(alone, data):
    confusion = np.array(alone.result["confusion"])
    labels = read_data(str(data)).test.labels
    assert confusion.sum(1).tolist() == np.bincount(labels, minlength=10).tolist()
    assert np.trace(confusion) == alone.result["test"]["correct"]


def test_every_rank_tells_how_long_it_was_in_collectives(data, tmp_path):
    ran = run(job("allreduce", 2), data, tmp_path)
    for process in ran.processes:
        (shares,) = process.of_kind("shares")
        assert 0 < shares["collective_seconds"] < shares["train_seconds"]
