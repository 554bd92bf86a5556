"""The zoo as Gluon blocks: builds the networks that `catalog/models.py` describes, with the names and layouts of
`torch_zoo`.

Images come as (count, channels, height, width), words as their places in a vocabulary; logits go out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

from velodrome.catalog import models as zoo
from velodrome.catalog.models import MODELS, Lstm, Sized, check_shape, models_for, zoo_model
from velodrome.errors import BadRequest

#: Hidden and cell state of every row, each (layers, rows, units).
State = list[Any]
#: The networks of images that this interpreter can build.
_KNOWN = models_for("images", without=(zoo.Residual, zoo.Norm, zoo.Average))
#: Models that change their training images at random.
AUGMENTED = tuple(model.name for model in MODELS if model.draws)


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

    def start(self, seed: int, limit: float | None) -> None:
        """Glorot's uniform distribution for weights, or one within a limit; zero for biases."""
        generator = np.random.default_rng(seed)
        for name, parameter in self.parameters_by_name().items():
            shape = parameter.shape
            if name.endswith("bias"):
                parameter.set_data(mx.nd.zeros(shape))
                continue
            field = math.prod(shape[2:])
            reach = limit or math.sqrt(6.0 / ((shape[0] + shape[1]) * field))
            parameter.set_data(mx.nd.array(generator.uniform(-reach, reach, shape)))


class LanguageModel(gluon.HybridBlock):
    """Takes words (columns, rows) and the LSTM state; returns logits (columns, rows, vocabulary) and the new state."""

    def __init__(self, vocabulary: int, about: Lstm) -> None:
        super().__init__(prefix="")
        self._limit, self._layers, self._units = about.limit, about.layers, about.units
        with self.name_scope():
            self.embedding = nn.Embedding(vocabulary, about.units)
            self.lstm = rnn.LSTM(about.units, about.layers, input_size=about.units)
            self.softmax = nn.Dense(vocabulary, in_units=about.units, flatten=False)

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:  # noqa: N803 (Gluon's name)
        outputs, state = self.lstm(self.embedding(words), [hidden, cell])
        return self.softmax(outputs), state

    def initial_state(self, rows: int, dtype: str) -> State:
        """The state at the beginning of a text."""
        return [mx.nd.zeros((self._layers, rows, self._units), dtype=dtype) for _ in range(2)]

    def parameters_by_name(self) -> dict[str, gluon.Parameter]:
        """The parameters under the names that PyTorch's zoo gives them; the second bias of a layer stays zero."""
        named = {"embedding.weight": self.embedding.weight}
        for layer in range(self._layers):
            for theirs, ours in (("weight_ih", "i2h_weight"), ("weight_hh", "h2h_weight"), ("bias_ih", "i2h_bias"),
                                 ("bias_hh", "h2h_bias")):
                named[f"lstm.{theirs}_l{layer}"] = getattr(self.lstm, f"l{layer}_{ours}")
        return {**named, "softmax.weight": self.softmax.weight, "softmax.bias": self.softmax.bias}

    def start(self, seed: int, limit: float | None) -> None:
        """A uniform distribution for everything but the second bias; within a limit that is not the model's own, for
        weights only, and 1 for the bias of forget gates, as MXNet's cells have it."""
        generator, reach = np.random.default_rng(seed), limit or self._limit
        for name, parameter in self.parameters_by_name().items():
            if "bias_hh" in name:
                parameter.grad_req = "null"
            if "bias" in name and ("bias_hh" in name or limit is not None):
                values = np.zeros(parameter.shape)
                if "bias_ih" in name:
                    values[self._units : 2 * self._units] = 1.0  # gates are in the order input, forget, cell, output
            else:
                values = generator.uniform(-reach, reach, parameter.shape)
            parameter.set_data(mx.nd.array(values))


def _layer(each: Sized) -> Any:
    """The block of a layer; None for augmentation, which changes images before they are fed."""
    before, after = each.before[-1], each.after[-1]
    match each.layer:
        case zoo.Flatten():
            # With one channel there is no order of channels, and nothing to copy.
            return nn.Flatten() if before == 1 else Flatten()
        case zoo.Dense():
            return nn.Dense(after, in_units=before)
        case zoo.Conv(filters, size, padding, bias):
            return nn.Conv2D(filters, size, padding=padding, in_channels=before, use_bias=bias)
        case zoo.Pool():
            return nn.MaxPool2D(2)
        case zoo.Activation(function):
            return nn.Activation(function)
    return None


#: `Module.fit` draws weights from a uniform distribution within this limit, unless it is given another initializer.
MODULE_LIMIT = 0.01


def build(
    name: str, input_shape: Sequence[int], classes: int, seed: int, dtype: str, limit: float | None = None
) -> Named:
    """A network of the zoo for images of (channels, height, width), with the weights that the seed decides: the zoo's
    own distribution, or a uniform one within a limit."""
    about = zoo_model(name)
    if name not in _KNOWN or not isinstance(about.network, tuple):
        raise BadRequest(f"--model {name!r}: engine mxnet has {', '.join(_KNOWN)} and lstm-small; choose one of them, "
                         "or another engine")
    channels, height, width = input_shape
    check_shape(name, (height, width, channels))
    layers = {each.name: _layer(each) for each in zoo.sized(about.network, (height, width, channels), classes)}
    return _started(Named({name: layer for name, layer in layers.items() if layer is not None}), seed, dtype,
                    limit)


def build_text(name: str, vocabulary: int, seed: int, dtype: str, limit: float | None = None) -> LanguageModel:
    """A language model of the zoo with the weights that the seed decides, as above."""
    about = zoo_model(name).network
    if not isinstance(about, Lstm):
        raise BadRequest(f"--model {name!r}: engine mxnet has lstm-small for text; choose it, or another engine")
    return _started(LanguageModel(vocabulary, about), seed, dtype, limit)


def _started(network: Any, seed: int, dtype: str, limit: float | None) -> Any:
    network.initialize(mx.init.Zero())
    network.cast(dtype)
    network.start(seed, limit)
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
