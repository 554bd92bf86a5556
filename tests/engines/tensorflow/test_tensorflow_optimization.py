"""Optimization as people do it, under TensorFlow: compared with Keras' own parts and between all strategies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import largest_difference
from driver_process import read_data
from keras_numbers import numbers

from velodrome.tasks.schedule import order_of_epoch

pytestmark = pytest.mark.integration

#: 91 examples in batches of 30: four steps an epoch, the last with a single example.
STEPS, STEPS_OF_EPOCH = 18, 4
EVERYTHING = {
    "model": "keras_nets:conv", "optimizer": "adamw", "weight_decay": 0.05, "learning_rate": 0.01, "schedule": "cosine",
    "warmup": "4", "label_smoothing": 0.1, "ema": 0.8, "steps": STEPS,
}
PARTS = {"batch_size": 10, "accumulate": 3}


def cosine(step: int) -> float:
    """The rate of a step, counted from 0."""
    if step < 4:
        return 0.01 * (step + 1) / 4
    return 0.01 * (1 + math.cos(math.pi * (step - 4) / (STEPS - 4))) / 2


def by_keras(data: Path, optimizer: Any, rate: Any, smoothing: float, steps: int = STEPS) -> tuple[Any, Any]:
    """Weights that Keras' own training makes, and the averages of its optimizer."""
    import keras
    import keras_nets

    with numbers("float64"):
        splits = read_data(str(data))
        keras.utils.set_random_seed(3)
        model = keras_nets.conv(splits.input_shape, splits.classes)
        model.compile(optimizer, keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing))
        for step in range(steps):
            epoch, place = divmod(step, STEPS_OF_EPOCH)
            batch = order_of_epoch(91, 3, epoch + 1)[30 * place : 30 * (place + 1)]
            optimizer.learning_rate = rate(step)
            labels = keras.utils.to_categorical(splits.train.labels[batch], splits.classes)
            model.train_on_batch(splits.train.images[batch].astype("float64") / 255, labels)
        weights = np.concatenate([np.ravel(value) for value in model.trainable_variables])
        if optimizer.use_ema:
            optimizer.finalize_variable_values(model.trainable_variables)
        return weights, np.concatenate([np.ravel(value) for value in model.trainable_variables])


def test_all_of_it_together_is_what_keras_makes_of_it(train: Any, data: Path) -> None:
    keras = pytest.importorskip("keras")
    ours = train(strategy="single", **EVERYTHING)
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.05, use_ema=True, ema_momentum=0.8)
    weights, averages = by_keras(data, optimizer, cosine, 0.1)
    # Keras keeps rates and constants in float32 in some places.
    assert np.abs(ours.state["weights"] - weights).max() < 1e-6
    assert np.abs(ours.state["average"] - averages).max() < 1e-6
    last_steps = [min(STEPS_OF_EPOCH * epoch, STEPS) - 1 for epoch in range(1, 6)]
    expected = [cosine(step) for step in last_steps]
    assert [row["learning_rate"] for row in ours.result["history"]] == pytest.approx(expected, rel=1e-12)


def test_nesterov_is_that_of_keras(train: Any, data: Path) -> None:
    keras = pytest.importorskip("keras")
    ours = train(strategy="single", optimizer="momentum", nesterov=True, learning_rate=0.01, steps=STEPS)
    weights, _ = by_keras(data, keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), lambda step: 0.01, 0.0)
    assert np.abs(ours.state["weights"] - weights).max() < 1e-6


def test_keras_optimizers_do_not_round_the_constants_of_a_job_in_float64(train: Any) -> None:
    """They would end some 1e-9 away, because float32 has no 0.9."""
    asked = {"optimizer": "momentum", "nesterov": True, "learning_rate": 0.01, "label_smoothing": 0.2, "steps": STEPS}
    alone = train(strategy="single", **asked)
    stock = train(strategy="mirrored", workers=2, implementation="stock", **asked)
    assert largest_difference(alone.state, stock.state) < 1e-12


def test_weight_decay_of_other_optimizers_is_added_to_the_gradient(train: Any) -> None:
    """One step: with it, SGD's weights are those without it less rate times decay times the initial ones."""
    asked = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 1, "model": "keras_nets:dense"}
    without, begun = train(**asked, steps=1), train(**asked | {"learning_rate": 1e-30}, steps=1)
    decayed = train(**asked, steps=1, weight_decay=0.5)
    expected = without.state["weights"] - 0.1 * 0.5 * begun.state["weights"]
    assert np.abs(decayed.state["weights"] - expected).max() < 1e-12
    stock = train(**asked, steps=1, weight_decay=0.5, implementation="stock")
    assert np.abs(stock.state["weights"] - expected).max() < 1e-9


ROWS = [
    ("single", 1, "velodrome"), ("mirrored", 2, "velodrome"), ("allreduce", 2, "velodrome"), ("mirrored", 2, "stock"),
    ("parameter-server", 1, "velodrome"),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in (
        ("central-storage", 2, "velodrome"), ("multi-worker-mirrored", 2, "velodrome"), ("single", 1, "stock"),
        ("central-storage", 2, "stock"), ("multi-worker-mirrored", 2, "stock"), ("parameter-server", 1, "stock"),
    )),
]


@pytest.mark.quick("mirrored-2-stock", "parameter-server-1-velodrome")
@pytest.mark.parametrize(("strategy", "workers", "implementation"), ROWS)
def test_smaller_batches_that_are_added_up_are_the_larger_batch(
    train: Any, strategy: str, workers: int, implementation: str
) -> None:
    alone = train(strategy="single", **EVERYTHING)
    ran = train(strategy=strategy, workers=workers, implementation=implementation, **EVERYTHING | PARTS)
    limit = 1e-9
    assert ran.state["iterations"] == STEPS
    assert largest_difference(alone.state, ran.state) < limit
    assert ran.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], abs=1e2 * limit)


@pytest.mark.slow
def test_rows_of_a_text_are_added_up_too(tmp_path: Path) -> None:
    from driver import run, write_text

    from velodrome.job.job import Job

    text = write_text(tmp_path / "text.npz")
    asked = {"engine": "tensorflow", "model": "lstm-small", "dtype": "float64", "optimizer": "sgd", "unroll": 5,
             "learning_rate": 0.1, "steps": 6, "epochs": 2, "schedule": "linear", "seed": 3}
    whole = run(Job(**asked, batch_size=6), text, tmp_path / "whole")
    parts = run(Job(**asked, batch_size=2, accumulate=3), text, tmp_path / "parts")
    assert largest_difference(whole.state, parts.state) < 1e-9
    assert parts.result["test"]["loss_sum"] == pytest.approx(whole.result["test"]["loss_sum"], rel=1e-9)


OWN = {"optimizer": "keras_nets:make_optimizer", "epochs": 3, "model": "keras_nets:conv"}


@pytest.mark.parametrize(("strategy", "workers", "changes"), [
    ("mirrored", 2, {"schedule": "linear"}), pytest.param("single", 1, {}, marks=pytest.mark.slow),
    pytest.param("multi-worker-mirrored", 2, {}, marks=pytest.mark.slow),
    pytest.param("central-storage", 2, {}, marks=pytest.mark.slow),
    pytest.param("parameter-server", 1, {"schedule": "linear"}, marks=pytest.mark.slow),
    pytest.param("parameter-server", 1, {}, marks=pytest.mark.slow),
])
def test_an_optimizer_of_ones_own_is_used_as_it_is(
    train: Any, data: Path, strategy: str, workers: int, changes: dict[str, Any]
) -> None:
    pytest.importorskip("keras")
    import keras_nets

    ran = train(strategy=strategy, workers=workers, **OWN | changes)
    rate = (lambda step: 0.01 * (1 - step / 12)) if changes else (lambda step: 0.01)
    weights, _ = by_keras(data, keras_nets.make_optimizer(), rate, 0.0, steps=12)
    assert np.abs(ran.state["weights"] - weights).max() < 1e-5
    assert "your optimizer keras_nets:make_optimizer" in ran.result["implementation"]["framework"]


@pytest.mark.parametrize(("strategy", "workers", "name"), [
    ("mirrored", 2, "make_clipped"),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in [
        ("single", 1, "make_clipped"), ("multi-worker-mirrored", 2, "make_clipped"),
        ("central-storage", 3, "make_clipped"), ("parameter-server", 1, "make_clipped"),
        ("mirrored", 3, "make_clipped_as_a_whole"), ("multi-worker-mirrored", 2, "make_clipped_by_value"),
    ]),
])
def test_an_optimizer_clips_the_gradient_of_all_workers(
    train: Any, data: Path, strategy: str, workers: int, name: str
) -> None:
    """Keras itself clips what each replica has, so that the number of replicas would change what is learned."""
    keras = pytest.importorskip("keras")
    import keras_nets

    ran = train(strategy=strategy, workers=workers, **OWN | {"optimizer": f"keras_nets:{name}"})
    weights, free = (
        by_keras(data, optimizer, lambda step: 1 / 16, 0.0, steps=12)[0]
        for optimizer in (getattr(keras_nets, name)(), keras.optimizers.SGD(1 / 16, momentum=0.9))
    )
    assert np.abs(ran.state["weights"] - weights).max() < 1e-7
    assert np.abs(free - weights).max() > 1e-3, "it clips"


@pytest.mark.parametrize(("name", "words"), [
    ("make_averaging", "leave it out, and use --ema"), ("make_scaling", "leave out loss scaling"),
    ("make_accumulating", "leave it out, and use --accumulate"),
])
def test_what_only_keras_fit_can_finish_is_refused(train: Any, name: str, words: str) -> None:
    (process,) = train(**OWN | {"optimizer": f"keras_nets:{name}"}, good=False).processes
    assert process.code == 2
    assert words in process.of_kind("error")[0]["message"]


@pytest.mark.slow
def test_a_strategy_that_cannot_use_an_optimizer_refuses_it_with_the_reason(train: Any) -> None:
    asked = {**OWN, "optimizer": "keras_nets:make_nadam", "strategy": "central-storage", "workers": 2}
    (process,) = train(**asked, good=False).processes
    assert process.code == 2
    message = process.of_kind("error")[0]["message"]
    assert "Keras' Nadam cannot train under central-storage: You must specify an aggregation method" in message


def test_a_resumed_run_with_an_optimizer_of_ones_own_and_averages_is_exact(train: Any, tmp_path: Path) -> None:
    asked = {**OWN, "strategy": "single", "ema": 0.9, "warmup": "1epochs"}
    whole = train(**asked)
    train(**asked | {"epochs": 2}, folder=tmp_path)
    resumed = train(**asked, folder=tmp_path, resume=True)
    assert largest_difference(whole.state, resumed.state) < 1e-12
    assert "average" in whole.state
    assert resumed.result["test"]["loss_sum"] == pytest.approx(whole.result["test"]["loss_sum"], rel=1e-12)


@pytest.mark.parametrize(("strategy", "workers"), [
    ("single", 1), pytest.param("allreduce", 2, marks=pytest.mark.slow),
])
def test_bfloat16_is_close_to_float32_and_keeps_float32_weights(train: Any, strategy: str, workers: int) -> None:
    asked = {"strategy": strategy, "workers": workers, "optimizer": "sgd"}
    exact, mixed = train(**asked, dtype="float32"), train(**asked, dtype="bfloat16")
    assert mixed.state["weights"].dtype == np.float32
    apart = np.abs(exact.state["weights"] - mixed.state["weights"]).max()
    assert 1e-6 < apart < 0.01, "it computes in another format, and nearly the same"
    assert abs(exact.result["test"]["correct"] - mixed.result["test"]["correct"]) <= 3


@pytest.mark.parametrize("form", [
    pytest.param("model.keras", marks=pytest.mark.slow), "weights.safetensors",
    pytest.param("weights.weights.h5", marks=pytest.mark.slow),
])
def test_a_job_starts_from_the_weights_of_a_file(train: Any, tmp_path: Path, form: str) -> None:
    keras = pytest.importorskip("keras")
    from safetensors.numpy import save_file

    before = train(strategy="single", optimizer="sgd", dtype="float32")
    file = before.folder / "model" / "model.keras"
    if form != "model.keras":
        saved = keras.saving.load_model(file)
        file = tmp_path / form
        if form.endswith(".h5"):
            saved.save_weights(file)
        else:
            save_file({variable.path: np.asarray(variable) for variable in saved.variables}, file)
    ran = train(strategy="single", optimizer="sgd", dtype="float32", weights=str(file), seed=9, steps=1, epochs=1,
                learning_rate=1e-12)
    assert np.abs(ran.state["weights"] - before.state["weights"]).max() < 1e-6
    assert not [event for process in ran.processes for event in process.of_kind("warning")]


def test_weights_that_do_not_match_are_listed_and_none_at_all_refused(train: Any) -> None:
    file = train(strategy="single", optimizer="sgd", dtype="float32").folder / "model" / "model.keras"
    asked = {"strategy": "single", "optimizer": "sgd", "dtype": "float32", "weights": str(file), "steps": 1}
    other = train(**asked, model_args={"filters": 4})
    (message,) = [event["message"] for process in other.processes for event in process.of_kind("warning")]
    assert "1 of the model's 4 tensors were loaded" in message
    assert "of another shape" in message
    (process,) = train(**asked, model="dense-300-100", good=False).processes
    assert process.code == 2
    assert "tensors fits the model" in process.of_kind("error")[0]["message"]


@pytest.mark.parametrize(("strategy", "workers"), [
    pytest.param("single", 1, marks=pytest.mark.slow), ("mirrored", 2),
])
def test_penalties_that_a_model_adds_are_trained_on(train: Any, strategy: str, workers: int) -> None:
    """One step of SGD: half a rate of 2·c·w is what an L2 penalty of c changes."""
    asked = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 1, "steps": 1, "model": "keras_nets:penalised"}
    start = train(**asked | {"learning_rate": 1e-30}).state["weights"]
    plain = train(**asked, model_args={"penalty": 0.0}).state["weights"]
    ran = train(**asked, strategy=strategy, workers=workers, model_args={"penalty": 0.25})
    kernel = ran.state["weights"].size - 10
    expected = np.where(np.arange(start.size) < kernel, plain - 0.1 * 2 * 0.25 * start, plain)
    assert np.abs(ran.state["weights"] - expected).max() < 1e-9
