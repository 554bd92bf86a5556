"""A user's Keras model is tried on the job's own batches before training, in both modes, and is the same afterwards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_keras_endings import network as ending
from tiny import tiny_splits

from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _nets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def network(model: str, examples: int = 40, **changes: Any) -> Any:
    from velodrome.engines.tensorflow.network import Network
    from velodrome.tasks.supervised import Classification

    asked = {"engine": "tensorflow", "model": f"keras_trials:{model}", "batch_size": 16, **changes}
    return Network(resolve(Job(**asked)), Classification(), tiny_splits(examples))


@pytest.mark.parametrize(("end", "sentence"), [
    ("tuple", "returns a tuple of 2, and one tensor of logits is needed: return the logits only"),
    ("list", "returns a list of 3, and"),
    ("dictionary", "returns a dict with the keys 'classes', 'extra', and"),
    ("tuple-in-training", "returns a tuple of 2 in training, and one tensor of logits is needed: turn its auxiliary"),
])
def test_a_model_that_returns_more_than_one_tensor_is_refused_by_its_type(end: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ending(end)
    assert f"model 'keras_endings:build' {sentence}" in str(refused.value)


def test_a_model_for_one_size_of_batch_is_refused_where_an_epoch_ends_with_another() -> None:
    with pytest.raises(BadRequest) as refused:
        network("written")
    assert "trains on batches of 16 and not on one of 8, which the end of an epoch has: " in str(refused.value)
    assert "choose a --batch-size that divides the 40 training examples" in str(refused.value)


@pytest.mark.parametrize("model", ["declared", "written"])
@pytest.mark.parametrize("job", [{"examples": 48}, {"steps": 2}], ids=["divides", "steps"])
def test_it_is_trained_where_none_does_and_evaluated_in_batches_of_that_size(model: str, job: dict[str, int]) -> None:
    from velodrome.engines.tensorflow.flat import Batch

    built = network(model, **job)
    weights = [np.asarray(variable) for variable in built.trainable]
    images, labels = tiny_splits().test.images, tiny_splits().test.labels

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
    def evaluate(some: Any) -> Any:
        number = tf.shape(some, tf.int64)[0]
        return built.count(weights, [], Batch({"x": some}, {"y": tf.constant(labels)}, number, number)).counts

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8)])
    def train(some: Any) -> Any:
        number = tf.shape(some, tf.int64)[0]
        sources = [tf.constant(value) for value in weights]
        batch = Batch({"x": some}, {"y": tf.constant(labels[:16])}, number, number)
        return built.gradient(sources, lambda same: same, [], batch)[0]

    logits = images.reshape(31, -1) / 255.0 @ weights[0] + weights[1]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    np.testing.assert_allclose(evaluate(images), [(logits.argmax(1) == labels).sum(), 31, tf.reduce_sum(losses)], 1e-5)
    assert all(np.abs(each).max() > 0 for each in train(images[:16]))


def test_a_model_whose_batch_is_not_the_jobs_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"cannot take images of shape \(8, 8, 1\) in a batch of 16: Input to reshape"):
        network("written", model_args={"size": 5})


def test_a_network_for_other_images_is_refused_in_one_sentence_that_names_the_layer() -> None:
    with pytest.raises(BadRequest) as refused:
        network("lenet_for_28")
    assert "cannot take images of shape (8, 8, 1) in a batch of 16: Input 0 " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_trial_leaves_weights_statistics_and_random_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    from velodrome.engines.tensorflow import trial

    def drawn() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(tf.random.uniform([]))

    tried = network("changing")
    after = drawn()
    monkeypatch.setattr(trial.KerasTrial, "examine", lambda *_, **__: trial.Findings())
    plain = network("changing")
    assert after == drawn()
    assert len(plain.model.variables) == 7
    for one, other in zip(plain.model.variables, tried.model.variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("model", "sentence"), [
    ("compiled", "was compiled, and its optimizer, loss and metrics are ignored"),
    ("own_step", "has its own train_step, which is ignored"),
])
def test_what_keras_own_loop_would_heed_is_ignored_with_a_warning(model: str, sentence: str) -> None:
    (note,) = network(model).notes
    assert sentence in note


@pytest.mark.parametrize("model", ["of_torch", "of_torch_that_fails"])
def test_a_pytorch_model_is_refused_as_such(model: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(BadRequest) as refused:
        network(model)
    assert "a torch.nn.Module" in str(refused.value)
    assert str(refused.value).endswith("--engine tensorflow needs a Keras model: choose --engine torch")
