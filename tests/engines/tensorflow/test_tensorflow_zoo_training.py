"""The larger networks of the zoo train with TensorFlow under every strategy as in one process; batch normalisation uses
each worker's own examples, and everything else about it is exact.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import largest_difference, loading_code, run, write_data, write_text
from driver_process import read_data, read_text
from keras_numbers import numbers

from velodrome.job.job import Job
from velodrome.tasks.schedule import order_of_epoch

pytestmark = pytest.mark.integration

SYNCHRONOUS = ("mirrored", "multi-worker-mirrored", "central-storage", "allreduce")
LIMITS = {"float64": 1e-9, "float32": 1e-5}
LEAN = [("vgg-small", "multi-worker-mirrored", 2, "float64")]
REST = [row for row in product(("gpt-mini", "vgg-small"), SYNCHRONOUS, (2, 3), LIMITS) if row not in LEAN]
ROWS = [*LEAN, *(pytest.param(*row, marks=pytest.mark.slow) for row in REST)]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Images in four steps of 30, the last with one example; a text in five steps of seven rows."""
    folder = tmp_path_factory.mktemp("zoo")
    images, text = write_data(folder / "images.npz", examples=91), write_text(folder / "text.npz")
    return {"resnet20": images, "vgg-small": images, "gpt-mini": text}


@pytest.fixture(scope="session")
def zoo(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    done: dict[str, Any] = {}

    def call(model: str, **asked: Any) -> Any:
        key = repr((model, sorted(asked.items())))
        if key not in done:
            reads = {"batch_size": 7, "unroll": 10} if model == "gpt-mini" else {
                "batch_size": 30, "weight_decay": 0.0, "schedule": "constant"}
            usual = {"engine": "tensorflow", "dataset": "driven", "seed": 3, "epochs": 2, "optimizer": "momentum",
                     "learning_rate": 0.005, "dtype": "float64", "start_timeout": 60} | reads
            done[key] = run(Job(model=model, **(usual | asked)), files[model], tmp_path_factory.mktemp("run"))
        return done[key]

    return call


@pytest.mark.parametrize(("model", "strategy", "workers", "dtype"), ROWS)
def test_workers_together_end_with_the_weights_of_one(
    zoo: Any, model: str, strategy: str, workers: int, dtype: str
) -> None:
    alone, together = zoo(model, dtype=dtype), zoo(model, strategy=strategy, workers=workers, dtype=dtype)
    assert largest_difference(alone.state, together.state) < LIMITS[dtype]
    assert together.result["test"]["total"] == alone.result["test"]["total"]
    assert together.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], rel=1e-6)
    assert [epoch["train_loss"] for epoch in together.result["history"]] == pytest.approx(
        [epoch["train_loss"] for epoch in alone.result["history"]], rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vgg-small", "gpt-mini", "resnet20"])
def test_one_worker_of_a_parameter_server_ends_with_the_weights_of_one_process(zoo: Any, model: str) -> None:
    alone, served = zoo(model), zoo(model, strategy="parameter-server", workers=1, servers=1)
    assert largest_difference(alone.state, served.state) < 1e-9
    assert served.result["test"]["loss_sum"] == pytest.approx(alone.result["test"]["loss_sum"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-mini", "vgg-small", "resnet20"])
def test_two_workers_of_a_parameter_server_train(zoo: Any, model: str) -> None:
    # With three rows of ten words, the usual rate and momentum overshoot in one process, too. At this rate losses fall
    # whether gradients are computed from the latest weights or from those before the last three updates.
    asked = {"batch_size": 3, "optimizer": "sgd", "learning_rate": 0.001} if model == "gpt-mini" else {"batch_size": 15}
    ran = zoo(model, strategy="parameter-server", workers=2, servers=2, **asked)
    losses = [epoch["train_loss"] for epoch in ran.result["history"]]
    assert losses[1] < losses[0]
    assert ran.result["test"]["total"] == (89 if model == "gpt-mini" else 31)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-mini", "vgg-small"])
@pytest.mark.parametrize("strategy", ["single", "mirrored", "multi-worker-mirrored"])
def test_the_stock_form_ends_with_the_same_weights(zoo: Any, model: str, strategy: str) -> None:
    # Keras keeps rate and momentum in float32, where this rate is exact and 0.9 is not.
    asked = {"optimizer": "sgd", "learning_rate": 2.0**-8}
    stock = zoo(model, strategy=strategy, workers=1 if strategy == "single" else 2, implementation="stock", **asked)
    assert largest_difference(zoo(model, **asked).state, stock.state) < 1e-9


def normalised_by_worker(images: Any, labels: Any, workers: int, rate: float) -> tuple[Any, Any]:
    """Weights and moving statistics after two epochs of resnet20 where each of several workers normalises by its own
    part of a batch: the gradients of all parts are summed, and moving statistics averaged after an epoch. Keras' own
    layers, called one worker after another."""
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    from velodrome.models import keras_zoo

    with numbers("float64"):
        keras.utils.set_random_seed(3)
        model = keras_zoo.build("resnet20", (8, 8, 1), 10)
        moving, trained = model.non_trainable_variables, model.trainable_variables

        @tf.function
        def gradients(some: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                chances = tf.nn.log_softmax(model(some, training=True))
                loss = -tf.reduce_sum(tf.gather(chances, targets, batch_dims=1))
            return tape.gradient(loss, trained)

        held = [[np.asarray(variable).copy() for variable in moving] for _ in range(workers)]
        speed = [np.zeros(variable.shape) for variable in trained]
        for epoch in (1, 2):
            for batch in np.split(order_of_epoch(len(labels), 3, epoch), range(30, len(labels), 30)):
                total = [np.zeros(variable.shape) for variable in trained]
                for rank in range(workers):
                    mine = batch[rank::workers]
                    if not len(mine):
                        continue
                    for variable, value in zip(moving, held[rank], strict=True):
                        variable.assign(value)
                    computed = gradients(tf.constant(images[mine]), tf.constant(labels[mine]))
                    total = [each + np.asarray(one) / len(batch) for each, one in zip(total, computed, strict=True)]
                    held[rank] = [np.asarray(variable).copy() for variable in moving]
                speed = [0.9 * moved + gradient for moved, gradient in zip(speed, total, strict=True)]
                for variable, moved in zip(trained, speed, strict=True):
                    variable.assign(np.asarray(variable) - rate * moved)
            mean = [np.mean(values, axis=0) for values in zip(*held, strict=True)]
            held = [list(mean) for _ in range(workers)]
        return np.concatenate([np.ravel(variable) for variable in trained]), mean


@pytest.mark.parametrize(("strategy", "workers"), [
    *(pytest.param(name, 2, marks=pytest.mark.slow) for name in SYNCHRONOUS),
    pytest.param("single", 1, marks=pytest.mark.slow), pytest.param("allreduce", 3, marks=pytest.mark.slow),
])
def test_resnet20_normalises_by_each_workers_own_examples_and_is_exact_otherwise(
    zoo: Any, files: dict[str, Path], strategy: str, workers: int
) -> None:
    data = read_data(str(files["resnet20"])).train
    weights, moving = normalised_by_worker(data.images / 255, data.labels, workers, 0.005)
    state = zoo("resnet20", strategy=strategy, workers=workers).state
    assert np.abs(state["weights"] - weights).max() < 1e-9
    for index, value in enumerate(moving):
        assert np.abs(state[f"statistic.{index}"] - value).max() < 1e-9


def test_a_saved_gpt_is_plain_keras_without_state(zoo: Any, files: dict[str, Path]) -> None:
    ran = zoo("gpt-mini")
    scope: dict[str, Any] = {}
    exec(loading_code(ran.folder / "model"), scope)
    logits = np.asarray(scope["model"](read_text(str(files["gpt-mini"])).test[None, :7]))
    assert logits.shape == (1, 7, 30)
    assert "at most 10 words" in (ran.folder / "model" / "README.md").read_text()
