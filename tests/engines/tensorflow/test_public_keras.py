"""Keras models as their authors publish them train unmodified under several strategies, with what is not promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driver import Ran, largest_difference
from keras_numbers import numbers

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.integration

slow = pytest.mark.slow
#: Each model in one process, and over several replicas or processes; further strategies are slow.
INSIDE = [
    pytest.param("preprocessing", "mirrored", id="preprocessing-mirrored"),
    pytest.param("preprocessing", "multi-worker-mirrored", id="preprocessing-multi-worker-mirrored", marks=slow),
    pytest.param("regularized", "allreduce", id="regularizers-allreduce"),
    pytest.param("regularized", "mirrored", id="regularizers-mirrored", marks=slow),
    pytest.param("constrained", "mirrored", id="constraints-mirrored"),
    pytest.param("constrained", "allreduce", id="constraints-allreduce", marks=slow),
    pytest.param("constrained", "multi-worker-mirrored", id="constraints-multi-worker-mirrored", marks=slow),
    pytest.param("constrained", "central-storage", id="constraints-central-storage", marks=slow),
    pytest.param("vit", "allreduce", id="vision-transformer-allreduce", marks=slow),
    pytest.param("vit", "central-storage", id="vision-transformer-central-storage", marks=slow),
    pytest.param("shared", "mirrored", id="shared-layer-and-dictionary-mirrored", marks=slow),
    pytest.param("shared", "allreduce", id="shared-layer-and-dictionary-allreduce", marks=slow),
]


def asked(kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    arguments = {"kind": kind, **more.pop("arguments", {})}
    return {"model": "keras_public:build", "model_args": arguments, "strategy": strategy, "epochs": 3, **more,
            **({} if strategy == "single" else {"workers": 2}),
            **({"servers": 1, "batch_size": 15} if strategy == "parameter-server" else {})}


def warnings(ran: Ran) -> list[str]:
    return [event["message"] for process in ran.processes for event in process.of_kind("warning")]


@pytest.mark.quick("preprocessing-mirrored", "regularizers-allreduce")
@pytest.mark.parametrize(("kind", "strategy"), INSIDE)
def test_two_workers_end_with_the_weights_of_one(train: Any, kind: str, strategy: str) -> None:
    alone, ran = (train(**asked(kind, name)) for name in ("single", strategy))
    assert largest_difference(ran.state, alone.state, "weights") < 1e-9
    assert ran.result["test"]["correct"] == alone.result["test"]["correct"]
    assert not [message for message in warnings(ran) if "guarantee" in message]
    history = ran.result["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"]


@pytest.mark.quick("subclass-allreduce")
@pytest.mark.parametrize(("kind", "arguments", "strategy", "reason"), [
    pytest.param("subclass", {}, "allreduce", "batch normalisation", id="subclass-allreduce"),
    pytest.param("subclass", {}, "multi-worker-mirrored", "batch normalisation", id="subclass-mwms", marks=slow),
    pytest.param("preprocessing", {"augment": True}, "mirrored", "random numbers", id="augmented-mirrored"),
])
def test_what_is_outside_the_promise_trains_and_is_stated_once(
    train: Any, kind: str, arguments: dict[str, Any], strategy: str, reason: str
) -> None:
    ran = train(**asked(kind, strategy, arguments=arguments))
    (message,) = [one for one in warnings(ran) if "guarantee" in one]
    assert reason in message
    assert ("random numbers" in message) == (reason == "random numbers")
    assert ran.result["history"][-1]["train_loss"] < ran.result["history"][0]["train_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regularized", "preprocessing", "subclass", "vit", "shared"])
def test_a_parameter_server_trains_it_too(train: Any, kind: str) -> None:
    ran = train(**asked(kind, "parameter-server"))
    assert ran.result["history"][-1]["train_loss"] < ran.result["history"][0]["train_loss"]
    assert not [message for message in warnings(ran) if "guarantee" in message]


@pytest.mark.parametrize("kind", ["regularized", "constrained"])
def test_penalties_and_constraints_are_those_of_keras_own_training(train: Any, data: Any, kind: str) -> None:
    """The same steps with `GradientTape`, Keras' own loss and plain arithmetic, apart from everything in the engine."""
    import keras
    import keras_public
    import tensorflow as tf

    from velodrome.tasks.schedule import order_of_epoch

    stored = np.load(data)
    images, labels = stored["train_images"] / 255.0, stored["train_labels"]
    with numbers("float64"):
        keras.utils.set_random_seed(3)
        model = keras_public.build((8, 8, 1), 10, kind)
        speed = [0.0 for _ in model.trainable_variables]
        for epoch in (1, 2, 3):
            order = order_of_epoch(len(labels), 3, epoch)
            for first in range(0, len(order), 30):
                batch = order[first : first + 30]
                with tf.GradientTape() as tape:
                    answers = model(images[batch], training=True)
                    loss = keras.losses.sparse_categorical_crossentropy(
                        labels[batch], answers, from_logits=kind == "constrained"
                    )
                    loss = tf.reduce_mean(loss) + sum(model.losses)
                gradients = tape.gradient(loss, model.trainable_variables)
                speed = [0.9 * before + np.asarray(gradient) for before, gradient in zip(speed, gradients, strict=True)]
                for variable, moved in zip(model.trainable_variables, speed, strict=True):
                    variable.assign(np.asarray(variable) - 0.05 * moved)
                    if variable.constraint is not None:
                        variable.assign(variable.constraint(variable))
        expected = np.concatenate([np.ravel(variable) for variable in model.trainable_variables])
    np.testing.assert_allclose(train(**asked(kind, "single")).state["weights"], expected, atol=1e-9)


@pytest.mark.parametrize(("strategy", "form"), [
    pytest.param("mirrored", "stock", marks=slow), pytest.param("single", "stock", marks=slow),
    pytest.param("multi-worker-mirrored", "stock", marks=slow), pytest.param("central-storage", "stock", marks=slow),
    pytest.param("parameter-server", "stock", marks=slow), pytest.param("parameter-server", "velodrome", marks=slow),
])
def test_constraints_hold_in_every_form_of_a_strategy(train: Any, strategy: str, form: str) -> None:
    """Under a parameter server with one worker, whose steps are those of one process; averages are of what was kept."""
    more = {"optimizer": "sgd", "learning_rate": 1 / 16, "ema": 0.5}
    alone = train(**asked("constrained", "single", **more))
    if strategy == "parameter-server":
        more |= {"workers": 1, "servers": 2, "batch_size": 30}
    ran = train(**{**asked("constrained", strategy), **more, "implementation": form})
    for name in ("weights", "average"):
        assert largest_difference(ran.state, alone.state, name) < 1e-9


def test_a_model_that_assigns_to_its_weights_is_refused_by_the_weight(train: Any) -> None:
    """What a call assigns holds for that call only: training and evaluation would compute with different kernels."""
    (process,) = train(**asked("spectral", "single"), good=False).processes
    assert process.code == 2
    message = process.of_kind("error")[0]["message"]
    assert "changes its trainable weight" in message
    assert "kernel" in message
