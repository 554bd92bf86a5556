"""The zoo as Gluon blocks: the architectures, names and layouts of `torch_zoo`, with the same initial distributions.

Images come as (count, channels, height, width), words as their places in a vocabulary; logits go out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

from velodrome.catalog.models import check_shape, zoo_model
from velodrome.errors import BadRequest

Shape = tuple[int, int, int]
#: Hidden and cell state of every row, each (layers, rows, units).
State = list[Any]


class Flatten(gluon.HybridBlock):
    """Flattens height first and channels last, as Keras does."""

    def hybrid_forward(self, F: Any, images: Any) -> Any:  # noqa: N803 (Gluon's name)
        return F.flatten(F.transpose(images, axes=(0, 2, 3, 1)))


class Named(gluon.HybridBlock):
    """Layers one after another, each under its name."""

    def __init__(self, layers: Mapping[str, Any]) -> None:
        super().__init__(prefix="")
        self.layers = dict(layers)
        for name, layer in layers.items():
            self.register_child(layer, name)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803 (Gluon's name)
        for layer in self.layers.values():
            x = layer(x)
        return x

    def parameters_by_name(self) -> dict[str, gluon.Parameter]:
        """The parameters under the names that PyTorch's zoo gives them."""
        return {
            f"{name}.{kind}": getattr(layer, kind) for name, layer in self.layers.items()
            for kind in ("weight", "bias") if hasattr(layer, kind)
        }

    def start(self, seed: int) -> None:
        """Glorot's uniform distribution for weights, zero for biases."""
        generator = np.random.default_rng(seed)
        for name, parameter in self.parameters_by_name().items():
            shape = parameter.shape
            if name.endswith("bias"):
                parameter.set_data(mx.nd.zeros(shape))
                continue
            field = math.prod(shape[2:])
            limit = math.sqrt(6.0 / ((shape[0] + shape[1]) * field))
            parameter.set_data(mx.nd.array(generator.uniform(-limit, limit, shape)))


class LanguageModel(gluon.HybridBlock):
    """Takes words (columns, rows) and the LSTM state; returns logits (columns, rows, vocabulary) and the new state."""

    def __init__(self, vocabulary: int, units: int, layers: int, limit: float) -> None:
        super().__init__(prefix="")
        self._limit, self._layers, self._units = limit, layers, units
        with self.name_scope():
            self.embedding = nn.Embedding(vocabulary, units)
            self.lstm = rnn.LSTM(units, layers, input_size=units)
            self.softmax = nn.Dense(vocabulary, in_units=units, flatten=False)

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:  # noqa: N803 (Gluon's name)
        outputs, state = self.lstm(self.embedding(words), [hidden, cell])
        return self.softmax(outputs), state

    def initial_state(self, rows: int, dtype: str) -> State:
        """The state at the beginning of a text."""
        return [mx.nd.zeros((self._layers, rows, self._units), dtype=dtype) for _ in range(2)]

    def parameters_by_name(self) -> dict[str, gluon.Parameter]:
        """The parameters under the names that PyTorch's zoo gives them; the second bias of a layer stays zero."""
        found = {"embedding.weight": self.embedding.weight}
        for layer in range(self._layers):
            for theirs, ours in (("weight_ih", "i2h_weight"), ("weight_hh", "h2h_weight"), ("bias_ih", "i2h_bias"),
                                 ("bias_hh", "h2h_bias")):
                found[f"lstm.{theirs}_l{layer}"] = getattr(self.lstm, f"l{layer}_{ours}")
        return {**found, "softmax.weight": self.softmax.weight, "softmax.bias": self.softmax.bias}

    def start(self, seed: int) -> None:
        """A uniform distribution for everything but the second bias."""
        generator = np.random.default_rng(seed)
        for name, parameter in self.parameters_by_name().items():
            if "bias_hh" in name:
                parameter.grad_req = "null"
                parameter.set_data(mx.nd.zeros(parameter.shape))
            else:
                parameter.set_data(mx.nd.array(generator.uniform(-self._limit, self._limit, parameter.shape)))


def _dense(shape: Shape, *behind: int) -> dict[str, Any]:
    widths = math.prod(shape), *behind
    # With one channel there is no order of channels, and nothing to copy.
    layers: dict[str, Any] = {"flatten": nn.Flatten() if shape[0] == 1 else Flatten()}
    for number in range(1, len(widths)):
        if number > 1:
            layers[f"relu{number - 1}"] = nn.Activation("relu")
        layers[f"dense{number}"] = nn.Dense(widths[number], in_units=widths[number - 1])
    return layers


def _lenet5(shape: Shape, classes: int) -> dict[str, Any]:
    channels, height, width = shape
    for _ in range(2):
        height, width = (height - 4) // 2, (width - 4) // 2
    # tanh is increasing, so the maximum of a window is the same before and after it: pooling first needs a quarter.
    return {
        "conv1": nn.Conv2D(20, 5, in_channels=channels), "pool1": nn.MaxPool2D(2), "tanh1": nn.Activation("tanh"),
        "conv2": nn.Conv2D(50, 5, in_channels=20), "pool2": nn.MaxPool2D(2), "tanh2": nn.Activation("tanh"),
        "flatten": Flatten(), "dense1": nn.Dense(500, in_units=50 * height * width), "tanh3": nn.Activation("tanh"),
        "dense2": nn.Dense(classes, in_units=500),
    }


def _fruit_cnn(shape: Shape, classes: int) -> dict[str, Any]:
    channels, height, width = shape
    layers: dict[str, Any] = {}
    for number, filters in enumerate((16, 32, 64, 64), start=1):
        layers[f"conv{number}"] = nn.Conv2D(filters, 3, padding=1, in_channels=channels)
        layers[f"pool{number}"] = nn.MaxPool2D(2)
        layers[f"relu{number}"] = nn.Activation("relu")
        channels, height, width = filters, height // 2, width // 2
    return {
        **layers, "flatten": Flatten(), "dense1": nn.Dense(128, in_units=channels * height * width),
        "relu5": nn.Activation("relu"), "dense2": nn.Dense(classes, in_units=128),
    }


def _vgg_small(shape: Shape, classes: int) -> dict[str, Any]:
    channels, height, width = shape
    layers: dict[str, Any] = {}
    for number, filters in enumerate((32, 64), start=1):
        layers[f"conv{number}"] = nn.Conv2D(filters, 3, padding=1, in_channels=channels)
        layers[f"pool{number}"] = nn.MaxPool2D(2)
        layers[f"relu{number}"] = nn.Activation("relu")
        channels, height, width = filters, height // 2, width // 2
    return {
        **layers, "flatten": Flatten(), "dense1": nn.Dense(1024, in_units=channels * height * width),
        "relu3": nn.Activation("relu"), "dense2": nn.Dense(1024, in_units=1024), "relu4": nn.Activation("relu"),
        "dense3": nn.Dense(classes, in_units=1024),
    }


_LAYERS: dict[str, Callable[[Shape, int], dict[str, Any]]] = {
    "linear": lambda shape, classes: _dense(shape, classes),
    "dense-128": lambda shape, classes: _dense(shape, 128, classes),
    "dense-300-100": lambda shape, classes: _dense(shape, 300, 100, classes),
    "lenet5": _lenet5,
    "fruit-cnn": _fruit_cnn,
    "vgg-small": _vgg_small,
}
#: Models that change their training images at random.
AUGMENTED = ("fruit-cnn",)


def build(name: str, input_shape: Sequence[int], classes: int, seed: int, dtype: str) -> Named:
    """A network of the zoo for images of (channels, height, width), with the weights that the seed decides."""
    zoo_model(name)
    if name not in _LAYERS:
        raise BadRequest(f"--model {name!r}: engine mxnet has {', '.join(_LAYERS)} and lstm-small; choose one of them, "
                         "or another engine")
    channels, height, width = input_shape
    check_shape(name, (height, width, channels))
    return _started(Named(_LAYERS[name]((channels, height, width), classes)), seed, dtype)


def build_text(name: str, vocabulary: int, seed: int, dtype: str) -> LanguageModel:
    """A language model of the zoo with the weights that the seed decides."""
    if name != "lstm-small":
        raise BadRequest(f"--model {name!r}: engine mxnet has lstm-small for text; choose it, or another engine")
    return _started(LanguageModel(vocabulary, units=200, layers=2, limit=0.1), seed, dtype)


def _started(network: Any, seed: int, dtype: str) -> Any:
    network.initialize(mx.init.Zero())
    network.cast(dtype)
    network.start(seed)
    return network


def augment(images: np.ndarray, generator: np.random.Generator, shift: float = 0.1, brightness: float = 0.1) -> Any:
    """Images (count, channels, height, width) from 0 to 1, flipped at random, shifted by up to a tenth, and their
    brightness changed by as much."""
    count, _, height, width = images.shape

    def shifted(size: int) -> Any:
        most = int(size * shift)
        by = generator.integers(-most, most + 1, (count, 1))
        return np.clip(np.arange(size) + by, 0, size - 1)

    rows, columns = shifted(height), shifted(width)
    mirrored = generator.random((count, 1)) < 0.5
    columns = np.where(mirrored, width - 1 - columns, columns)
    each = np.arange(count)[:, None, None]
    moved = images.transpose(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    light = (generator.random((count, 1, 1, 1)) * 2 - 1) * brightness
    return np.clip(moved + light.astype(images.dtype), 0.0, 1.0).transpose(0, 3, 1, 2)
