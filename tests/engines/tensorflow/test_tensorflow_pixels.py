"""`--pixels` under TensorFlow: a model's own preprocessing is found, and every strategy standardizes alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import Ran, largest_difference, run, write_data
from driver_process import read_data

from velodrome.job.job import Job

SHAPE = (8, 7, 3)


@pytest.fixture(scope="session")
def colour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("colour") / "colour.npz", examples=91, shape=SHAPE)


@pytest.fixture(scope="session")
def colour_on_disk(colour: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mapped")
    with np.load(colour) as stored:
        for name in stored.files:
            np.save(folder / f"{name}.npy", stored[name])
    return folder


@pytest.fixture(scope="session")
def fit(colour: Path, make_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train on the colour data; equal jobs are trained once."""
    done: dict[str, Ran] = {}

    def call(place: Path = colour, **asked: Any) -> Ran:
        key = repr((place, sorted(asked.items())))
        if key not in done:
            usual = {"strategy": "single", "epochs": 2, "pixels": "standardize", "learning_rate": 0.01}
            done[key] = run(make_job(**(usual | asked)), place, tmp_path_factory.mktemp("run"))
        return done[key]

    return call


def warnings_of(ran: Ran) -> list[str]:
    return [event["message"] for process in ran.processes for event in process.of_kind("warning")]


@pytest.mark.unit
@pytest.mark.parametrize(("pixels", "form", "told"), [
    ("auto", "byte", "so it is fed pixels from 0 to 255, as with --pixels byte"),
    ("byte", "byte", None),
    ("unit", "unit", "and --pixels unit feeds others: choose --pixels byte"),
    ("standardize", "standardize", "and --pixels standardize feeds others: choose --pixels byte"),
])
@pytest.mark.parametrize("made", ["sequential", "nested", "subclassed", "normalization", "adapted"])
def test_a_model_that_begins_with_preprocessing_of_bytes_gets_bytes_or_a_warning(
    colour: Path, made: str, pixels: str, form: str, told: str | None
) -> None:
    keras = pytest.importorskip("keras")
    from keras import layers
    from keras_nets import Subclassed, conv, rescaling

    from velodrome.engines.tensorflow.inspection import choose_transform

    data = read_data(str(colour))
    adapted = layers.Normalization()
    adapted.adapt(data.train.images.astype("float32"))
    head = conv(SHAPE, 10)
    model = {
        "sequential": lambda: keras.Sequential([keras.Input(SHAPE), layers.Rescaling(1 / 127.5, offset=-1), head]),
        "nested": lambda: rescaling(SHAPE, 10, augmented=True),
        "subclassed": lambda: Subclassed(10, layers.RandomRotation(0.1), layers.Rescaling(1 / 255)),
        "normalization": lambda: keras.Sequential([
            keras.Input(SHAPE), layers.Normalization(mean=[123.0, 116.0, 103.0], variance=[3400.0, 3300.0, 3300.0]),
            head,
        ]),
        "adapted": lambda: keras.Sequential([keras.Input(SHAPE), adapted, head]),
    }[made]()
    job = Job(engine="tensorflow", model="nets:build", pixels=pixels)
    transform, notes = choose_transform(job, model, data, classifies_images=True)
    assert transform.form == form
    assert [told in note for note in notes] == ([True] if told else [])


@pytest.mark.unit
@pytest.mark.parametrize("made", ["plain", "for units", "behind a layer"])
def test_other_models_get_pixels_from_0_to_1_without_a_word(colour: Path, made: str) -> None:
    keras = pytest.importorskip("keras")
    from keras import layers
    from keras_nets import conv

    from velodrome.engines.tensorflow.inspection import choose_transform

    head = conv(SHAPE, 10)
    first = {
        "plain": [], "for units": [layers.Rescaling(2.0, offset=-1.0)],
        "behind a layer": [layers.Conv2D(3, 1), layers.Rescaling(0.01)],
    }[made]
    model = keras.Sequential([keras.Input(SHAPE), *first, head])
    job = Job(engine="tensorflow", model="nets:build")
    transform, notes = choose_transform(job, model, read_data(str(colour)), classifies_images=True)
    assert (transform.form, notes) == ("unit", ())


@pytest.mark.unit
def test_a_normalization_that_was_never_adapted_is_told(colour: Path) -> None:
    keras = pytest.importorskip("keras")
    from keras import layers
    from keras_nets import conv

    from velodrome.engines.tensorflow.inspection import choose_transform

    model = keras.Sequential([keras.Input(SHAPE), layers.Normalization(), conv(SHAPE, 10)])
    job = Job(model="nets:build")
    transform, (note,) = choose_transform(job, model, read_data(str(colour)), classifies_images=True)
    assert transform.form == "unit"
    assert "was never adapted and changes nothing: --pixels standardize does what it would" in note


@pytest.mark.integration
def test_a_nested_rescaling_trains_as_the_same_network_without_it(fit: Any) -> None:
    own, plain = fit(model="keras_nets:rescaling", pixels="auto"), fit(pixels="auto")
    assert largest_difference(own.state, plain.state) < 1e-7  # Keras multiplies by the scale in float32
    assert (own.result["pixels"], plain.result["pixels"]) == ("byte", "unit")
    assert ["begins with Rescaling ('by')" in told for told in warnings_of(own)] == [True]
    assert not warnings_of(plain)
    told = json.loads((own.folder / "model" / "model.json").read_text())
    assert (told["pixels"], told["scale"], told["offset"]) == ("byte", 1.0, 0.0)


@pytest.mark.integration
def test_a_model_that_standardizes_itself_ends_with_the_weights_of_one_that_gets_it_done(
    fit: Any, colour: Path
) -> None:
    images = read_data(str(colour)).train.images
    arguments = {"mean": images.mean((0, 1, 2)).tolist(), "variance": images.var((0, 1, 2)).tolist()}
    own = fit(model="keras_nets:standardizing", model_args=arguments, pixels="auto")
    assert own.result["pixels"] == "byte"
    assert largest_difference(own.state, fit().state) < 1e-7  # Keras keeps the mean that it is given in float32
    told = json.loads((fit().folder / "model" / "model.json").read_text())
    assert told["scale"] == pytest.approx(1 / images.std((0, 1, 2)), rel=1e-12)
    assert told["offset"] == pytest.approx(-images.mean((0, 1, 2)) / images.std((0, 1, 2)), rel=1e-12)


PLACES = [
    {"strategy": "mirrored", "workers": 2},
    {"strategy": "multi-worker-mirrored", "workers": 2},
    {"strategy": "parameter-server", "workers": 1},
    {"strategy": "parameter-server", "workers": 1, "implementation": "stock"},
    {"strategy": "allreduce", "workers": 2},
    *(pytest.param(place, marks=pytest.mark.slow) for place in (
        {"strategy": "central-storage", "workers": 3},
        {"strategy": "single", "implementation": "stock"},
        {"strategy": "mirrored", "workers": 2, "implementation": "stock"},
        {"strategy": "multi-worker-mirrored", "workers": 2, "implementation": "stock"},
    )),
]


@pytest.mark.quick("*allreduce*", "*multi-worker-mirrored*", "*'parameter-server', 'workers': 1}")
@pytest.mark.integration
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_strategy_ends_with_the_same_weights_from_standardized_pixels(fit: Any, place: dict[str, Any]) -> None:
    ran = fit(**place)
    assert largest_difference(fit().state, ran.state) < 1e-9
    assert ran.result["pixels"] == "standardize"


@pytest.mark.integration
@pytest.mark.parametrize("place", [
    {"strategy": "single"}, {"strategy": "parameter-server", "workers": 1},
    *(pytest.param({"strategy": strategy, "workers": 2}, marks=pytest.mark.slow)
      for strategy in ("mirrored", "multi-worker-mirrored", "central-storage", "allreduce")),
], ids=str)
def test_data_on_disk_is_standardized_like_data_in_memory(
    fit: Any, colour_on_disk: Path, place: dict[str, Any]
) -> None:
    assert largest_difference(fit().state, fit(colour_on_disk, **place).state) < 1e-9
