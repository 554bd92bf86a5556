"""Whatever a user's Keras model ends in, the loss is Keras' own, in value and gradient, also of unlikely classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_splits

from velodrome.job.job import Job
from velodrome.job.resolve import resolve

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.unit

SOFTMAX = ("activation", "layer", "activation-layer", "functional", "functional-ops", "nested", "wrapped",
           "tf-softmax", "ops-softmax", "activations-softmax", "in-evaluation", "in-training", "convolutional",
           "indexed")


@pytest.fixture(autouse=True)
def _nets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def network(end: str, **changes: Any):
    from velodrome.engines.tensorflow.network import Network
    from velodrome.tasks.supervised import Classification

    model, arguments = "keras_endings:build", {"end": end}
    asked = {"engine": "tensorflow", "model": model, "model_args": arguments, "batch_size": 16, **changes}
    return Network(resolve(Job(**asked)), Classification(), tiny_splits())


def certain_weights(built: Any, factor: float = 400.0) -> list[Any]:
    """Weights so large that most classes have a probability below the smallest number."""
    factors = [factor if variable.path.endswith("kernel") else 1.0 for variable in built.trainable]
    return [np.asarray(variable) * each for variable, each in zip(built.trainable, factors, strict=True)]


def measured(built: Any, weights: list[Any], *, training: bool = True) -> tuple[float, list[Any]]:
    """Summed loss and its gradient as training and evaluation compute them, in a graph for batches of any size."""
    from velodrome.engines.tensorflow.flat import Batch

    data = tiny_splits().train
    statistics = built.initial_statistics(0)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
    def run(images: Any) -> Any:
        count = tf.shape(images, tf.int64)[0]
        batch = Batch({"x": images}, {"y": tf.constant(data.labels)}, count, tf.constant(1, tf.int64))
        sources = [tf.constant(value) for value in weights]
        if not training:
            return built.count(sources, statistics, batch).counts, []
        gradient, result = built.gradient(sources, lambda same: same, statistics, batch)
        return result.counts, gradient

    counts, gradient = run(tf.constant(data.images))
    return float(counts[2]), [np.asarray(each) for each in gradient]


def keras_loss(built: Any, weights: list[Any], *, training: bool) -> tuple[float, list[Any]]:
    """The same by Keras' own loss, called on the model as `fit` does."""
    data = tiny_splits().train
    for variable, value in zip(built.trainable, weights, strict=True):
        variable.assign(value)

    @tf.function(autograph=False)
    def run(images: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = built.model(images, training=training)
            losses = keras.losses.sparse_categorical_crossentropy(data.labels, outputs)
            total = tf.reduce_sum(losses)
        return total, tape.gradient(total, [variable.value for variable in built.trainable])

    total, gradient = run(tf.constant(data.images / 255.0, tf.float32))
    return float(total), [np.asarray(each) for each in gradient]


def logits_loss(built: Any, weights: list[Any], applied: Any = lambda logits: logits) -> tuple[float, list[Any]]:
    """The same written out for a dense layer and a function of what it returns."""
    data = tiny_splits().train
    kernel, bias = (tf.constant(value) for value in weights)
    with tf.GradientTape() as tape:
        tape.watch([kernel, bias])
        flat = tf.constant(data.images.reshape(len(data.images), -1) / 255.0, tf.float32)
        logits = applied(flat @ tf.reshape(kernel, [64, 10]) + bias)
        total = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(data.labels, logits))
    return float(total), [np.asarray(each) for each in tape.gradient(total, [kernel, bias])]


def assert_equal(ours: tuple[float, list[Any]], theirs: tuple[float, list[Any]], rounding: float = 1e-5) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=rounding)
    largest = max((np.abs(each).max() for each in theirs[1]), default=0.0)
    for one, other in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding * largest)


@pytest.mark.parametrize("end", [*SOFTMAX, "log-softmax", "logits", "written-logits"])
def test_the_loss_is_the_cross_entropy_of_the_logits(end: str) -> None:
    built = network(end)
    weights = certain_weights(built)
    theirs = logits_loss(built, weights)
    assert theirs[0] / 40 > 17  # a loss of clipped probabilities ends at 16.1
    assert_equal(measured(built, weights), theirs)
    assert measured(built, weights, training=False)[0] == pytest.approx(theirs[0], rel=1e-5)


@pytest.mark.parametrize("end", ["activation", "layer", "functional", "nested", "tf-softmax", "sigmoid"])
def test_it_is_the_loss_that_keras_computes(end: str) -> None:
    built = network(end)
    weights = certain_weights(built)
    for training in (True, False):
        ours = measured(built, weights, training=training)
        theirs = keras_loss(built, weights, training=training)
        assert_equal(ours, theirs if training else (theirs[0], []))


@pytest.mark.parametrize(("end", "applied"), [
    ("scaled", lambda logits: tf.nn.softmax(logits) * 3),
    ("over-examples", lambda logits: tf.nn.softmax(logits, axis=0)),
])
def test_what_only_looks_like_a_softmax_is_taken_as_it_is(end: str, applied: Any) -> None:
    built = network(end)
    weights = certain_weights(built, 10)
    assert_equal(measured(built, weights), logits_loss(built, weights, applied))


def test_a_layer_after_the_softmax_gives_the_logits() -> None:
    built = network("softmax-then-dense")
    data = tiny_splits().train
    expected = keras.losses.sparse_categorical_crossentropy(
        data.labels, built.model(data.images / 255.0), from_logits=True
    )
    weights = [np.asarray(variable) for variable in built.trainable]
    assert measured(built, weights)[0] == pytest.approx(float(tf.reduce_sum(expected)), rel=1e-5)
    assert built.notes == ()


@pytest.mark.parametrize("end", ["hand-written", "in-a-function", "average", "reversed"])
def test_probabilities_without_a_softmax_to_look_into_are_exact_down_to_the_smallest_number_with_a_warning(
    end: str,
) -> None:
    built = network(end)
    (note,) = built.notes
    assert "return logits" in note
    if end in ("average", "reversed"):
        return
    weights = certain_weights(built, 30)
    theirs = logits_loss(built, weights)
    assert theirs[0] / 40 > 5
    assert_equal(measured(built, weights), theirs, 1e-4)


@pytest.mark.parametrize("end", ["sigmoid", "sigmoid-layer", "tf-sigmoid"])
def test_a_sigmoid_is_trained_by_what_goes_into_it_with_a_warning(end: str) -> None:
    built = network(end)
    (note,) = built.notes
    assert "ends in a sigmoid" in note
    weights = certain_weights(built)
    assert_equal(measured(built, weights), logits_loss(built, weights))


@pytest.mark.parametrize("end", [*SOFTMAX, "log-softmax", "logits"])
def test_an_exact_loss_needs_no_warning(end: str) -> None:
    assert network(end).notes == ()
