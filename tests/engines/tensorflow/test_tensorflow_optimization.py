"""Optimization as people do it, under TensorFlow: compared with Keras' own parts and between all strategies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import largest_difference
from driver_process import read_data

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

    keras.config.set_floatx("float64")
    try:
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
    finally:
        keras.config.set_floatx("float32")


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


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("adam", 0.0)])
def test_weight_decay_of_other_optimizers_is_added_to_the_gradient(train: Any, optimizer: str, momentum: float) -> None:
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


@pytest.mark.parametrize(("strategy", "workers", "implementation"), ROWS)
def test_smaller_batches_that_are_added_up_are_the_larger_batch(
    train: Any, strategy: str, workers: int, implementation: str
) -> None:
    alone = train(strategy="single", **EVERYTHING)
    ran = train(strategy=strategy, workers=workers, implementation=implementation, **EVERYTHING | PARTS)
    limit = 1e-9 if implementation == "velodrome" else 1e-6  # Keras keeps constants of its own in float32
    assert ran.state["iterations"] == STEPS
    assert largest_difference(alone.state, ran.state) < limit
    assert ran.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], abs=1e2 * limit)
