"""A user's own Keras model trains under every strategy, whatever it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import largest_difference

PLACES = {
    "single": {},
    "mirrored": {"workers": 2},
    "central-storage": {"workers": 2},
    "multi-worker-mirrored": {"workers": 2},
    "allreduce": {"workers": 2},
    "parameter-server": {"workers": 2, "servers": 2, "batch_size": 15},
}

pytestmark = pytest.mark.integration


@pytest.mark.quick("multi-worker-mirrored", "parameter-server")
@pytest.mark.parametrize("strategy", PLACES)
def test_batch_normalisation_dropout_and_frozen_layers_train(train: Any, strategy: str) -> None:
    ran = train(strategy=strategy, model="keras_nets:lively", optimizer="adam", dtype="float32", **PLACES[strategy])
    state, result = ran.state, ran.result
    assert result["history"][-1]["train_loss"] < result["history"][0]["train_loss"]
    # Kernel and bias of the frozen convolution, moving mean and variance, the state of the random numbers.
    frozen, bias, mean, variance, _ = (state[f"statistic.{index}"] for index in range(5))
    assert frozen.shape == (3, 3, 1, 4)
    assert not bias.any()
    assert np.abs(mean).max() > 0
    assert np.abs(variance - 1).max() > 0
    assert result["test"]["total"] == 31


@pytest.mark.quick("allreduce", "single")
@pytest.mark.parametrize("place", [
    {"strategy": "single"},
    {"strategy": "allreduce", "workers": 2},
    {"strategy": "parameter-server", "workers": 1, "servers": 2},
    {"strategy": "mirrored", "workers": 2, "implementation": "stock"},
], ids=["single", "allreduce", "parameter-server", "stock"])
def test_a_final_softmax_is_trained_and_evaluated_as_the_logits_before_it(train: Any, place: dict[str, Any]) -> None:
    """The layer is so large that clipped probabilities would give no gradient for most examples."""
    asked = {"model": "keras_nets:dense", "optimizer": "sgd", "epochs": 2}
    logits = train(**asked, strategy="single", model_args={"factor": 40.0})
    softmax = train(**asked, **place, model_args={"factor": 40.0, "activation": "softmax"})
    assert json.loads((softmax.folder / "model" / "model.json").read_text())["outputs"] == "probabilities"
    assert largest_difference(softmax.state, logits.state, "weights") < 1e-9
    test, expected = softmax.result["test"], logits.result["test"]
    assert test["loss_sum"] / test["total"] > 17
    assert test["loss_sum"] == pytest.approx(expected["loss_sum"], rel=1e-9)


def test_a_subclass_of_model_trains(train: Any) -> None:
    written, linear = (train(strategy="single", model=name) for name in ("keras_nets:written", "linear"))
    assert largest_difference(written.state, linear.state) == 0
    assert json.loads((written.folder / "model" / "model.json").read_text())["file"] == "model.weights.h5"
    assert (written.folder / "model" / "model.weights.h5").exists()


def test_arguments_reach_the_users_function(train: Any) -> None:
    ran = train(strategy="single", model="keras_nets:conv", model_args={"filters": 2}, epochs=1)
    assert ran.result["parameters"] == 2 * 9 + 2 + 2 * 36 * 10 + 10


@pytest.mark.parametrize(("asked", "words"), [
    ({"model": "lenet5"}, "at least 16×16"),
    ({"model": "keras_nets:no_model"}, "needs a Keras model"),
    ({"model": "keras_nets:conv", "model_args": {"filters": -1}}, None),
])
def test_a_model_that_cannot_be_is_refused(train: Any, asked: dict[str, Any], words: str | None) -> None:
    ran = train(strategy="single", good=False, **asked)
    (error,) = ran.processes[0].of_kind("error")
    assert ran.processes[0].code != 0
    if words:
        assert ran.processes[0].code == 2
        assert words in error["message"]


def test_the_saved_model_is_plain_keras(train: Any, data: Path) -> None:
    keras = pytest.importorskip("keras")
    from driver_process import read_data

    ran = train(strategy="multi-worker-mirrored", workers=2, optimizer="momentum", dtype="float64")
    model = keras.saving.load_model(ran.folder / "model" / "model.keras")
    test = read_data(str(data)).test
    answers = np.asarray(model(test.images / 255.0)).argmax(axis=1)
    assert (answers == test.labels).sum() == ran.result["test"]["correct"]


RESUMED = [("single", 1), ("multi-worker-mirrored", 2), *(
    pytest.param(name, 2, marks=pytest.mark.slow) for name in ("mirrored", "central-storage", "allreduce"))]


@pytest.mark.quick("multi-worker-mirrored-2")
@pytest.mark.parametrize(("strategy", "workers"), RESUMED)
def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(
    train: Any, tmp_path: Path, strategy: str, workers: int
) -> None:
    place = {"strategy": strategy, "workers": workers, "optimizer": "adam", "model": "keras_nets:lively"}
    whole = train(**place, epochs=3)
    train(**place, epochs=2, folder=tmp_path)
    resumed = train(**place, epochs=3, folder=tmp_path, resume=True)
    names = [name for name in whole.state if workers == 1 or not name.startswith("statistic")]
    assert largest_difference({n: whole.state[n] for n in names}, {n: resumed.state[n] for n in names}) < 1e-12


def test_a_resumed_run_draws_what_an_undisturbed_one_draws(train: Any, tmp_path: Path) -> None:
    place = {"strategy": "single", "model": "keras_nets:drawing", "model_args": {"by_step": True}}
    whole = train(**place, epochs=3)
    train(**place, epochs=2, folder=tmp_path)
    resumed = train(**place, epochs=3, folder=tmp_path, resume=True)
    assert largest_difference(whole.state, resumed.state) < 1e-12


def test_a_model_that_draws_while_it_is_traced_has_the_same_numbers_in_every_graph(train: Any) -> None:
    """`allreduce` has a graph for the first step of a call and one for the others."""
    alone, together = (train(strategy=name, workers=workers, model="keras_nets:drawing")
                       for name, workers in (("single", 1), ("allreduce", 2)))
    assert largest_difference(alone.state, together.state) < 1e-9
