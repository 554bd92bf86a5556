"""Given the same weights, the Keras and the PyTorch model of a name give the same answers."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("shape", [(28, 28, 1), (16, 20, 3)])
@pytest.mark.parametrize("name", ["linear", "dense-128", "dense-300-100", "lenet5", "vgg-small"])
def test_both_engines_compute_the_same_function(name: str, shape: tuple[int, int, int]) -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    from velodrome.models import keras_zoo, torch_zoo

    height, width, channels = shape
    keras_model = keras_zoo.build(name, input_shape=shape, classes=7)
    torch_model = torch_zoo.build(name, input_shape=(channels, height, width), classes=7)
    ours, theirs = keras_model.trainable_variables, list(torch_model.parameters())
    assert sum(int(np.prod(each.shape)) for each in ours) == sum(each.numel() for each in theirs)
    with torch.no_grad():
        for variable, parameter in zip(ours, theirs, strict=True):
            # A kernel is (height, width, in, out) here and (out, in, height, width) there; a dense one (in, out).
            value = np.asarray(variable)
            turned = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(turned)))
        images = np.random.default_rng(2).random((6, *shape), np.float32)
        answers = torch_model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(np.asarray(keras_model(images)) - answers).max() < 1e-5


def test_a_network_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of layers in `catalog/models.py` is all that the engines need, and they compute the same with it."""
    from velodrome.catalog import models
    from velodrome.catalog.models import RELU, Dense, convolutions, dense

    network = (*convolutions(4), *dense(9)[:-1], Dense(6), RELU, Dense())
    added = models.ZooModel("added", "a network for this test", smallest=4, network=network)
    monkeypatch.setattr(models, "MODELS", (*models.MODELS, added))
    assert "added" in models.models_for("images")
    test_both_engines_compute_the_same_function("added", (16, 20, 3))


@pytest.mark.parametrize("shape", [(10,), (5, 3)])
def test_the_networks_for_arrays_compute_the_same_function(shape: tuple[int, ...]) -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    from velodrome.models import keras_zoo, torch_zoo

    keras_model = keras_zoo.build("mlp", input_shape=shape, classes=3)
    torch_model = torch_zoo.build("mlp", input_shape=shape, classes=3)
    assert keras_model.count_params() == np.prod(shape) * 128 + 128 + 128 * 64 + 64 + 64 * 3 + 3
    rows = np.random.default_rng(2).normal(size=(6, *shape)).astype(np.float32)
    with torch.no_grad():
        for variable, parameter in zip(keras_model.trainable_variables, torch_model.parameters(), strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(np.asarray(variable).T)))
        answers = torch_model(torch.from_numpy(rows)).numpy()
    assert np.abs(np.asarray(keras_model(rows)) - answers).max() < 1e-5


def test_the_photo_networks_compute_the_same_function() -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    from velodrome.models import keras_zoo, torch_zoo

    keras_model = keras_zoo.build("fruit-cnn", input_shape=(36, 40, 3), classes=7)
    torch_model = torch_zoo.build("fruit-cnn", input_shape=(3, 36, 40), classes=7).eval()
    with torch.no_grad():
        for variable, parameter in zip(keras_model.trainable_variables, torch_model.parameters(), strict=True):
            value = np.asarray(variable)
            turned = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(turned)))
        images = np.random.default_rng(2).random((6, 36, 40, 3), np.float32)
        answers = torch_model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(np.asarray(keras_model(images, training=False)) - answers).max() < 1e-5


def test_the_residual_networks_compute_the_same_function_in_training_and_evaluation() -> None:
    """Weights and moving statistics are copied; in training, the statistics of the batch normalise it."""
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    from velodrome.models import keras_zoo, torch_zoo

    random = np.random.default_rng(2)
    keras_model = keras_zoo.build("resnet20", input_shape=(16, 20, 3), classes=7)
    torch_model = torch_zoo.build("resnet20", input_shape=(3, 16, 20), classes=7)
    with torch.no_grad():
        for variable, parameter in zip(keras_model.trainable_variables, torch_model.parameters(), strict=True):
            if "gamma" in variable.path or "beta" in variable.path:
                variable.assign(variable + random.normal(0, 0.1, variable.shape))
            value = np.asarray(variable)
            turned = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(turned)))
        statistics = [buffer for name, buffer in torch_model.named_buffers() if "running" in name]
        for variable, buffer in zip(keras_model.non_trainable_variables, statistics, strict=True):
            variable.assign(variable + random.random(variable.shape))
            buffer.copy_(torch.from_numpy(np.asarray(variable).copy()))
        images = random.random((6, 16, 20, 3), np.float32)
        for training in (False, True):
            answers = torch_model.train(training)(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
            found = np.asarray(keras_model(images, training=training))
            assert np.abs(found - answers).max() < 1e-4 * np.abs(answers).max()


def test_the_transformers_compute_the_same_function() -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    from velodrome.models import keras_zoo, torch_zoo

    random = np.random.default_rng(1)
    keras_model = keras_zoo.build_text("gpt-mini", 60, context=11)
    torch_model = torch_zoo.build_text("gpt-mini", 60, context=11)
    words = random.integers(0, 60, (3, 11)).astype(np.int32)
    with torch.no_grad():
        for variable, (name, parameter) in zip(
            keras_model.trainable_variables, torch_model.named_parameters(), strict=True
        ):
            # Away from the start, where all layers are nearly linear and biases are zero.
            variable.assign(variable + random.normal(0, 0.1, variable.shape))
            value = np.asarray(variable).copy()
            kept = value.ndim == 1 or name.startswith(("words", "positions"))
            parameter.copy_(torch.from_numpy(value if kept else value.T.copy()))
        answers = torch_model(torch.from_numpy(words)).numpy()
        shorter = torch_model(torch.from_numpy(words[:, :4])).numpy()
    assert np.abs(answers).max() > 1
    assert np.abs(np.asarray(keras_model(words)) - answers).max() < 1e-4
    assert np.abs(np.asarray(keras_model(words[:, :4])) - answers[:, :4]).max() < 1e-4, "no word sees a later one"
    assert np.abs(shorter - answers[:, :4]).max() < 1e-4


def test_the_language_models_compute_the_same_function() -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    from velodrome.models import keras_zoo, torch_zoo

    keras_model = keras_zoo.build_text("lstm-small", 60)
    torch_model = torch_zoo.build_text("lstm-small", 60)
    theirs = {name: value for name, value in torch_model.named_parameters() if value.requires_grad}
    ours = [np.asarray(variable) for variable in keras_model.trainable_variables]
    names = ["embedding.weight", *(f"lstm.{kind}_l{layer}" for layer in (0, 1) for kind in
             ("weight_ih", "weight_hh", "bias_ih")), "softmax.weight", "softmax.bias"]  # fmt: skip
    assert sorted(names) == sorted(theirs)
    words = np.random.default_rng(1).integers(0, 60, (3, 11)).astype(np.int32)
    with torch.no_grad():
        for name, value in zip(names, ours, strict=True):
            theirs[name].copy_(torch.from_numpy(value if name.startswith("embedding") else value.T.copy()))
        answers, (h, _) = torch_model(torch.from_numpy(words), torch_model.initial_state(3))
    logits, *state = keras_model([words, *[np.zeros((3, 200), np.float32)] * 4])
    assert np.abs(np.asarray(logits) - answers.numpy()).max() < 1e-5
    assert np.abs(np.asarray(state[2]) - h[1].numpy()).max() < 1e-5
