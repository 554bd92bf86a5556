"""The zoo in PyTorch: sizes, initial distribution, and what it computes."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.errors import BadRequest

torch = pytest.importorskip("torch")
from velodrome.models import torch_zoo  # noqa: E402

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", (1, 28, 28), 7_850),
        ("dense-128", (1, 8, 8), 9_610),
        ("dense-300-100", (1, 28, 28), 266_610),
        ("lenet5", (1, 28, 28), 431_080),
        ("fruit-cnn", (3, 100, 100), 356_842),
    ],
)
def test_models_have_the_published_number_of_parameters(name, shape, parameters):
    model = torch_zoo.build(name, shape, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_weights_start_glorot_uniform_and_biases_at_zero():
    torch.manual_seed(0)
    model = torch_zoo.build("lenet5", (1, 28, 28), 10)
    fans = {"conv1": (25, 500), "conv2": (500, 1250), "dense1": (800, 500), "dense2": (500, 10)}
    for name, (fan_in, fan_out) in fans.items():
        limit = (6 / (fan_in + fan_out)) ** 0.5
        weight = getattr(model, name).weight.detach().numpy()
        assert np.abs(weight).max() <= limit
        assert weight.std() == pytest.approx(limit / 3**0.5, rel=0.1)
        assert not getattr(model, name).bias.detach().any()


def test_lenet5_computes_what_its_description_says():
    """Convolution, tanh, pooling, written out in NumPy in height-width-channel order."""
    torch.manual_seed(3)
    model = torch_zoo.build("lenet5", (2, 16, 18), 7).double()
    images = np.random.default_rng(0).random((3, 16, 18, 2))

    def convolve(inputs, layer):
        kernel = layer.weight.detach().numpy().transpose(2, 3, 1, 0)
        windows = np.lib.stride_tricks.sliding_window_view(inputs, (5, 5), axis=(1, 2))
        return np.tanh(np.einsum("bijcyx,yxco->bijo", windows, kernel) + layer.bias.detach().numpy())

    def pool(inputs):
        count, height, width, channels = inputs.shape
        cut = inputs[:, : height // 2 * 2, : width // 2 * 2]
        return cut.reshape(count, height // 2, 2, width // 2, 2, channels).max((2, 4))

    hidden = pool(convolve(pool(convolve(images, model.conv1)), model.conv2)).reshape(3, -1)
    hidden = np.tanh(hidden @ model.dense1.weight.detach().numpy().T + model.dense1.bias.detach().numpy())
    expected = hidden @ model.dense2.weight.detach().numpy().T + model.dense2.bias.detach().numpy()
    found = model(torch.from_numpy(images).permute(0, 3, 1, 2)).detach().numpy()
    assert np.abs(found - expected).max() < 1e-12


def test_images_too_small_for_a_model_are_refused():
    with pytest.raises(BadRequest, match="at least 16×16"):
        torch_zoo.build("lenet5", (1, 8, 8), 10)


def test_the_language_model_has_one_bias_a_layer_and_starts_uniform():
    torch.manual_seed(0)
    model = torch_zoo.build_text("lstm-small", 10_000)
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    assert sum(value.numel() for value in trained.values()) == 10_000 * 200 + 2 * 401 * 800 + 10_000 * 201
    for name, value in trained.items():
        assert value.abs().max() <= 0.1, name
        assert value.std() == pytest.approx(0.2 / 12**0.5, rel=0.1), name
    assert not any(value.any() for name, value in model.named_parameters() if name not in trained)


def test_the_language_model_carries_its_memory():
    torch.manual_seed(0)
    model = torch_zoo.build_text("lstm-small", 50).double()
    words = torch.randint(0, 50, (3, 12))
    whole, (h, c) = model(words, model.initial_state(3))
    first, memory = model(words[:, :5], model.initial_state(3))
    second, (later_h, later_c) = model(words[:, 5:], memory)
    assert whole.shape == (3, 12, 50)
    assert torch.allclose(whole, torch.cat([first, second], 1), atol=1e-12)
    assert torch.allclose(h, later_h, atol=1e-12)
    assert torch.allclose(c, later_c, atol=1e-12)


def test_augmentation_moves_mirrors_and_lights_in_training_only():
    torch.manual_seed(0)
    augment = torch_zoo.Augment()
    images = torch.rand(400, 3, 40, 30).contiguous(memory_format=torch.channels_last)
    kept = images.clone()
    seen = augment(images)
    assert torch.equal(images, kept), "what is trained on stays as it is"
    assert seen.shape == images.shape
    assert seen.min() >= 0
    assert seen.max() <= 1
    assert augment.eval()(images) is images


def test_augmentation_does_no_more_than_it_says():
    torch.manual_seed(1)
    augment = torch_zoo.Augment(brightness=0.0)
    # Every pixel holds its own place.
    rows = torch.arange(40.0)[None, None, :, None].expand(300, 1, 40, 30) / 40
    columns = torch.arange(30.0)[None, None, None, :].expand(300, 1, 40, 30) / 30
    seen = augment(torch.cat([rows, columns], 1))
    moved = ((seen[:, 0, 20, 15] - 20 / 40) * 40).round().int()
    assert set(moved.tolist()) == set(range(-4, 5)), "by up to a tenth of the height"
    mirrored = seen[:, 1, 20, 10] > seen[:, 1, 20, 20]
    assert 100 < int(mirrored.sum()) < 200
    shifts = ((seen[:, 1, 20, 15] - torch.where(mirrored, 14, 15) / 30) * 30).round().int()
    assert set(shifts.tolist()) == set(range(-3, 4)), "by up to a tenth of the width"
    lit = torch_zoo.Augment(shift=0.0)(torch.full((300, 1, 4, 4), 0.5))
    assert 0.4 <= lit.min() < 0.42
    assert 0.58 < lit.max() <= 0.6


def test_models_of_images_are_no_language_models():
    with pytest.raises(BadRequest, match="reads images"):
        torch_zoo.build_text("lenet5", 100)
