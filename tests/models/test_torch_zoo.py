"""The zoo in PyTorch: sizes, initial distribution, and what it computes."""

from __future__ import annotations

import math

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
        ("resnet20", (3, 32, 32), 269_722),
        ("vgg-small", (3, 32, 32), 5_274_570),
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


def test_resnet20_computes_what_its_description_says():
    """Convolutions, normalisation by moving statistics and shortcuts without parameters, written out in NumPy."""
    torch.manual_seed(3)
    model = torch_zoo.build("resnet20", (2, 8, 12), 7).double().eval()
    random = np.random.default_rng(0)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "norm" in name and "tracked" not in name:
                value.copy_(torch.from_numpy(random.uniform(0.5, 1.5, value.shape)))
    weights = {name: value.numpy() for name, value in model.state_dict().items()}

    def convolve(inputs, name, stride=1):
        padded = np.pad(inputs, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
        return np.einsum("bcijyx,ocyx->boij", windows, weights[f"{name}.weight"])

    def normalise(inputs, name):
        mean, variance, scale, shift = (
            weights[f"{name}.{kind}"][:, None, None] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return (inputs - mean) / np.sqrt(variance + 1e-5) * scale + shift

    images = random.random((3, 2, 8, 12))
    now = np.maximum(normalise(convolve(images, "conv"), "norm"), 0)
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in (1, 2, 3):
            name, begins = f"stage{stage}_block{block}", stage > 1 and block == 1
            hidden = np.maximum(normalise(convolve(now, f"{name}.conv1", 2 if begins else 1), f"{name}.norm1"), 0)
            hidden = normalise(convolve(hidden, f"{name}.conv2"), f"{name}.norm2")
            if begins:
                shortcut = np.zeros_like(hidden)
                shortcut[:, : filters // 2] = now[:, :, ::2, ::2]
                now = shortcut
            now = np.maximum(hidden + now, 0)
    expected = now.mean((2, 3)) @ weights["dense.weight"].T + weights["dense.bias"]
    found = model(torch.from_numpy(images)).detach().numpy()
    assert np.abs(found - expected).max() < 1e-10


def test_resnet20_starts_he_normal():
    torch.manual_seed(0)
    model = torch_zoo.build("resnet20", (3, 32, 32), 10)
    for name, value in model.named_parameters():
        if value.ndim > 1:
            fan_in = value[0].numel()
            assert float(value.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.15), name
        elif "bias" in name:
            assert not value.any(), name


def test_gpt_mini_computes_what_its_description_says():
    """Pre-normalised blocks, causal attention of four heads and tied embeddings, written out in NumPy word by word."""
    torch.manual_seed(3)
    model = torch_zoo.build_text("gpt-mini", 50, context=7).double()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    words = np.random.default_rng(0).integers(0, 50, (2, 7))

    def dense(inputs, name):
        return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(inputs, name):
        centred = inputs - inputs.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(inputs):
        return inputs * (1 + np.vectorize(math.erf)(inputs / 2**0.5)) / 2

    for row in range(2):
        stream = weights["words.weight"][words[row]] + weights["positions.weight"]
        for block in range(4):
            name = f"blocks.{block}"
            query, key, value = np.split(dense(norm(stream, f"{name}.norm1"), f"{name}.qkv"), 3, axis=1)
            mixed = np.zeros_like(stream)
            for head in range(4):
                part = slice(32 * head, 32 * head + 32)
                for place in range(7):
                    scores = np.exp(key[: place + 1, part] @ query[place, part] / 32**0.5)
                    mixed[place, part] = scores / scores.sum() @ value[: place + 1, part]
            stream = stream + dense(mixed, f"{name}.attended")
            hidden = gelu(dense(norm(stream, f"{name}.norm2"), f"{name}.expand"))
            stream = stream + dense(hidden, f"{name}.contract")
        expected = norm(stream, "norm") @ weights["words.weight"].T
        found = model(torch.from_numpy(words[row : row + 1]))[0].detach().numpy()
        assert np.abs(found - expected).max() < 1e-9


def test_gpt_mini_has_tied_embeddings_and_starts_small():
    torch.manual_seed(0)
    model = torch_zoo.build_text("gpt-mini", 10_000, context=64)
    blocks = 4 * (12 * 128**2 + 13 * 128)
    assert sum(value.numel() for value in model.parameters()) == (10_000 + 64) * 128 + blocks + 2 * 128
    for name, value in model.named_parameters():
        if value.ndim > 1:
            added = name.endswith(("attended.weight", "contract.weight"))
            assert float(value.detach().std()) == pytest.approx(0.02 / 8**0.5 if added else 0.02, rel=0.05), name


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
