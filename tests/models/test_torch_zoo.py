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
