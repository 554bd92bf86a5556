"""Synchronous strategies end with the weights of one process, whatever the number of workers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from driver import largest_difference

from velodrome.tasks.correctness_bits import decode

STRATEGIES = ("mirrored", "multi-worker-mirrored", "central-storage", "allreduce")
LIMITS = {"float64": 1e-9, "float32": 1e-5}

LEAN = [
    ("mirrored", 3, "momentum", "float64"),
    ("central-storage", 3, "momentum", "float64"),
    ("multi-worker-mirrored", 2, "momentum", "float64"),
    ("multi-worker-mirrored", 3, "sgd", "float32"),
    ("allreduce", 2, "sgd", "float32"),
    ("allreduce", 3, "momentum", "float64"),
]
REST = [row for row in product(STRATEGIES, (1, 2, 3), ("sgd", "momentum"), LIMITS) if row not in LEAN]
ROWS = [*LEAN, *(pytest.param(*row, marks=pytest.mark.slow) for row in REST)]

pytestmark = pytest.mark.integration


@pytest.mark.quick(
    "mirrored-3-*", "central-storage-3-*", "multi-worker-mirrored-3-sgd-float32",
    "multi-worker-mirrored-2-*float64", "allreduce-3-*float64",
)
@pytest.mark.parametrize(("strategy", "workers", "optimizer", "dtype"), ROWS)
def test_workers_together_end_with_the_weights_of_one(
    train: Any, strategy: str, workers: int, optimizer: str, dtype: str
) -> None:
    alone = train(strategy="single", optimizer=optimizer, dtype=dtype)
    together = train(strategy=strategy, workers=workers, optimizer=optimizer, dtype=dtype)
    assert together.state["iterations"] == 20
    assert largest_difference(alone.state, together.state) < LIMITS[dtype]
    assert together.result["test_answers"] == alone.result["test_answers"]


@pytest.mark.quick("multi-worker-mirrored")
@pytest.mark.parametrize("strategy", [
    "central-storage", "multi-worker-mirrored", *(pytest.param(name, marks=pytest.mark.slow) for name in
                                                  ("mirrored", "allreduce")),
])
def test_metrics_are_those_of_one_process(train: Any, strategy: str) -> None:
    rows = {"strategy": strategy, "workers": 3, "optimizer": "momentum", "dtype": "float64"}
    lean = next((row for row in LEAN if row[0] == strategy), None)
    if lean:
        rows |= {"workers": lean[1], "optimizer": lean[2], "dtype": lean[3]}
    together = train(**rows).result
    alone = train(strategy="single", optimizer=rows["optimizer"], dtype=rows["dtype"]).result
    assert together["test"]["total"] == 31
    assert together["test"]["correct"] == alone["test"]["correct"]
    assert together["test"]["loss_sum"] == pytest.approx(alone["test"]["loss_sum"], rel=1e-5)
    for mine, other in zip(together["history"], alone["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
        assert mine["validation_accuracy"] == pytest.approx(other["validation_accuracy"])


@pytest.mark.quick("adam", "momentum")
@pytest.mark.parametrize("optimizer", ["adam", "momentum", "sgd"])
def test_one_process_ends_with_the_weights_that_keras_ends_with(train: Any, data: Any, optimizer: str) -> None:
    keras = pytest.importorskip("keras")
    import keras_nets
    import numpy as np
    from driver_process import read_data

    from velodrome.tasks.schedule import order_of_epoch

    ours = train(strategy="single", optimizer=optimizer, dtype="float32", model="keras_nets:conv")
    splits = read_data(str(data))
    keras.utils.set_random_seed(3)
    model = keras_nets.conv(splits.input_shape, splits.classes)
    rule = {"sgd": keras.optimizers.SGD(0.1), "momentum": keras.optimizers.SGD(0.05, momentum=0.9),
            "adam": keras.optimizers.Adam(0.001)}[optimizer]
    model.compile(rule, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for epoch in range(1, 6):
        for step in range(4):
            batch = order_of_epoch(91, 3, epoch)[30 * step : 30 * (step + 1)]
            model.train_on_batch(splits.train.images[batch].astype("float32") / 255, splits.train.labels[batch])
    theirs = np.concatenate([np.ravel(value) for value in model.trainable_variables])
    assert np.abs(theirs - ours.state["weights"]).max() < 1e-5
    right = np.asarray(model(splits.test.images.astype("float32") / 255)).argmax(axis=1) == splits.test.labels
    assert decode(ours.result["test_answers"], 31).tolist() == right.tolist()
