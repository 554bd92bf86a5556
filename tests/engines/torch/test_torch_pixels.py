"""`--pixels` under PyTorch: the same numbers in every layout, and the same weights under every strategy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import largest_difference, run, write_data
from driver_process import read_data

from velodrome.data.pixels import transform_of
from velodrome.job.job import Job

torch = pytest.importorskip("torch")


def job(**changes) -> Job:
    base = {"model": "torch_nets:logits", "optimizer": "sgd", "dtype": "float64", "batch_size": 22, "epochs": 2}
    return Job(**(base | {"pixels": "standardize", "learning_rate": 0.01} | changes))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "colour.npz", shape=(8, 7, 3))


@pytest.fixture(scope="module")
def on_disk(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mapped")
    with np.load(data) as stored:
        for name in stored.files:
            np.save(folder / f"{name}.npy", stored[name])
    return folder


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    return run(job(), data, tmp_path_factory.mktemp("alone"))


@pytest.mark.unit
@pytest.mark.parametrize("form", ["unit", "byte", "standardize"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_hold_the_same_numbers_from_memory_and_from_disk(data, on_disk, form, channels_last):
    from velodrome.engines.torch.feed import Columns, HeldPart, PrefetchedPart, part_of

    order, cpu = np.random.default_rng(0).permutation(90), torch.device("cpu")
    for place, kind in ((data, HeldPart), (on_disk, PrefetchedPart)):
        splits = read_data(str(place))
        pixels = transform_of(form, splits)
        columns = Columns(splits, torch.float64, cpu, channels_last=channels_last, pixels=pixels)
        part = part_of(splits.train, columns, cpu)
        assert isinstance(part, kind)
        part.begin(order, np.array([0, 50, 90]))
        expected = pixels(np.asarray(splits.train.images)[order]).transpose(0, 3, 1, 2)
        batches = [part.batch(0, 50), part.batch(50, 90)]
        assert np.abs(torch.cat([batch.x for batch in batches]).numpy() - expected).max() < 1e-12
        assert torch.cat([batch.y for batch in batches]).tolist() == np.asarray(splits.train.labels)[order].tolist()
        assert all(batch.x.is_contiguous() is not channels_last for batch in batches)


@pytest.mark.integration
@pytest.mark.parametrize("given", ["byte", "unit"])
def test_a_model_that_standardizes_itself_ends_with_the_weights_of_one_that_gets_it_done(
    data, alone, tmp_path, given
):
    images = read_data(str(data)).train.images
    white = 255 if given == "byte" else 1
    arguments = {
        "mean": (images.mean((0, 1, 2)) * white / 255).tolist(),
        "deviation": (images.std((0, 1, 2)) * white / 255).tolist(),
    }
    own = run(job(pixels=given, model="torch_nets:standardizing", model_args=arguments), data, tmp_path)
    weights = {name.replace("inner.", ""): value for name, value in own.state.items()}
    assert largest_difference(alone.state, weights, "model.") < 1e-9
    assert (own.result["pixels"], alone.result["pixels"]) == (given, "standardize")


@pytest.mark.quick("data-*ddp*", "on_disk-*allreduce*", "data-*stock*")
@pytest.mark.integration
@pytest.mark.parametrize("changes", [
    {"strategy": "ddp", "workers": 3}, {"strategy": "allreduce", "workers": 2}, {"implementation": "stock"},
    pytest.param({"strategy": "ddp", "workers": 2, "implementation": "stock"}, marks=pytest.mark.slow),
    pytest.param({"strategy": "allreduce", "workers": 3, "implementation": "stock"}, marks=pytest.mark.slow),
], ids=str)
@pytest.mark.parametrize("place", ["data", "on_disk"])
def test_every_strategy_ends_with_the_same_weights_from_standardized_pixels(
    request, alone, tmp_path, changes, place
):
    ran = run(job(**changes), request.getfixturevalue(place), tmp_path)
    assert largest_difference(alone.state, ran.state, "model.") < 1e-9
    assert ran.result["test"]["correct"] == alone.result["test"]["correct"]


@pytest.mark.integration
def test_a_saved_model_tells_how_to_make_its_input(alone, data):
    from velodrome.engines.torch import model_file

    told = json.loads((alone.folder / "model" / "model.json").read_text())
    images = read_data(str(data)).train.images
    assert told["pixels"] == "standardize"
    assert told["scale"] == pytest.approx(1 / images.std((0, 1, 2)), rel=1e-12)
    assert told["offset"] == pytest.approx(-images.mean((0, 1, 2)) / images.std((0, 1, 2)), rel=1e-12)
    sys.path.insert(0, str(Path(__file__).parent))
    stored = np.load(data)
    inputs = torch.from_numpy(stored["test_images"] * np.array(told["scale"]) + np.array(told["offset"]))
    with torch.no_grad():
        loaded = model_file.load(alone.folder / "model", "torch_nets:logits")
        answers = loaded(inputs.permute(0, 3, 1, 2)).argmax(1).numpy()
    assert int((answers == stored["test_labels"]).sum()) == alone.result["test"]["correct"]
