"""The zoo as plain functions on JAX arrays: the architectures, names and layouts of `torch_zoo`, with the same initial
distributions.

Images come as (count, height, width, channels), words as their places in a vocabulary; logits go out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from numpy.typing import NDArray

from velodrome.catalog.models import ARRAY_MODEL, check_shape, text_models, zoo_model
from velodrome.errors import BadRequest

Shape = tuple[int, int, int]
#: Weights and buffers by the names that PyTorch's zoo gives them.
Tensors = Mapping[str, jax.Array]
Values = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Training:
    """What a forward pass in training needs beside the examples."""

    #: Of the random numbers of this step.
    key: jax.Array
    #: For each example, 1, or 0 where it only fills up the batch.
    counted: jax.Array


#: Logits of images, and those buffers that the pass changed; evaluates without a `Training`.
Apply = Callable[[Tensors, jax.Array, Training | None], tuple[jax.Array, dict[str, jax.Array]]]


@dataclass(frozen=True)
class Network:
    """A network of images: its initial tensors, and the function that computes with them."""

    weights: Values
    apply: Apply
    #: What is not trained, but changes or is constant.
    buffers: Values = field(default_factory=dict)
    #: Whether many steps may be one compiled loop: in one, XLA's convolutions take ten times as long on a CPU.
    loops: bool = True


@dataclass(frozen=True)
class TextNetwork:
    """A language model: words (rows, columns) and a state to logits (columns, rows, vocabulary) and the new state."""

    weights: Values
    apply: Callable[[Tensors, jax.Array, Any], tuple[jax.Array, Any]]
    #: The state of so many rows at the beginning of a text; empty for a network that carries none.
    initial_state: Callable[[int], Any]
    buffers: Values = field(default_factory=dict)
    loops: bool = True


# -- layers


def dense(tensors: Tensors, name: str, inputs: jax.Array) -> jax.Array:
    return inputs @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def convolution(kernel: jax.Array, images: jax.Array, padding: int = 0, stride: int = 1) -> jax.Array:
    """With a kernel (filters, channels, height, width)."""
    sides = ((padding, padding), (padding, padding))
    # XLA's fast convolutions on a CPU want this order of a kernel.
    return lax.conv_general_dilated(
        images, kernel.transpose(2, 3, 1, 0), (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pooled(images: jax.Array) -> jax.Array:
    """The largest of each 2×2 pixels; a last odd row or column is left out."""
    count, height, width, channels = images.shape
    height, width = height // 2, width // 2
    # Not `reduce_window`, whose gradient takes far longer on a CPU.
    windows = images[:, : 2 * height, : 2 * width].reshape(count, height, 2, width, 2, channels)
    return windows.max((2, 4))


def _convolved(tensors: Tensors, name: str, images: jax.Array, padding: int = 0) -> jax.Array:
    return convolution(tensors[f"{name}.weight"], images, padding) + tensors[f"{name}.bias"]


def _flat(images: jax.Array) -> jax.Array:
    return images.reshape(len(images), -1)


# -- networks of images


def _dense_layers(*widths: int) -> tuple[dict[str, tuple[int, ...]], Apply]:
    layers = len(widths) - 1

    def apply(tensors: Tensors, images: jax.Array, training: Training | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        hidden = _flat(images)
        for number in range(1, layers + 1):
            hidden = dense(tensors, f"dense{number}", jax.nn.relu(hidden) if number > 1 else hidden)
        return hidden, {}

    return {f"dense{number}": (after, before) for number, (before, after) in enumerate(pairwise(widths), 1)}, apply


def _lenet5(shape: Shape, classes: int) -> tuple[dict[str, tuple[int, ...]], Apply]:
    height, width, channels = shape
    for _ in range(2):
        height, width = (height - 4) // 2, (width - 4) // 2

    def apply(tensors: Tensors, images: jax.Array, training: Training | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        # tanh is increasing, so the maximum of a window is the same before and after it: pooling first needs a quarter.
        hidden = jnp.tanh(pooled(_convolved(tensors, "conv1", images)))
        hidden = jnp.tanh(pooled(_convolved(tensors, "conv2", hidden)))
        return dense(tensors, "dense2", jnp.tanh(dense(tensors, "dense1", _flat(hidden)))), {}

    shapes = {"conv1": (20, channels, 5, 5), "conv2": (50, 20, 5, 5), "dense1": (500, 50 * height * width),
              "dense2": (classes, 500)}
    return shapes, apply


def _convolutional(
    shape: Shape, classes: int, filters: Sequence[int], widths: Sequence[int], *, augmented: bool = False
) -> tuple[dict[str, tuple[int, ...]], Apply]:
    """Convolutions 3×3, each with pooling and relu, then dense layers of these widths."""
    height, width, channels = shape
    layers = [channels, *filters]
    flat = (height >> len(filters)) * (width >> len(filters)) * filters[-1]
    after = [flat, *widths, classes]

    def apply(tensors: Tensors, images: jax.Array, training: Training | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        hidden = augment(images, training.key) if augmented and training is not None else images
        for number in range(1, len(layers)):
            # relu never decreases, so the maximum of a window is the same before and after it.
            hidden = jax.nn.relu(pooled(_convolved(tensors, f"conv{number}", hidden, padding=1)))
        hidden = _flat(hidden)
        for number in range(1, len(after)):
            hidden = dense(tensors, f"dense{number}", jax.nn.relu(hidden) if number > 1 else hidden)
        return hidden, {}

    shapes: dict[str, tuple[int, ...]] = {
        f"conv{number}": (out, into, 3, 3) for number, (into, out) in enumerate(pairwise(layers), 1)
    }
    return {**shapes, **{f"dense{number}": (out, into) for number, (into, out) in enumerate(pairwise(after), 1)}}, apply


def augment(images: jax.Array, key: jax.Array, shift: float = 0.1, brightness: float = 0.1) -> jax.Array:
    """Images from 0 to 1, flipped at random, shifted by up to a tenth, and their brightness changed by as much."""
    count, height, width, _ = images.shape
    vertical, horizontal, flip, bright = jax.random.split(key, 4)

    def shifted(drawn: jax.Array, size: int) -> jax.Array:
        most = int(size * shift)
        by = jax.random.randint(drawn, (count, 1), -most, most + 1)
        return jnp.clip(jnp.arange(size) + by, 0, size - 1)

    rows, columns = shifted(vertical, height), shifted(horizontal, width)
    columns = jnp.where(jax.random.bernoulli(flip, shape=(count, 1)), width - 1 - columns, columns)
    moved = images[jnp.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    light = jax.random.uniform(bright, (count, 1, 1, 1), images.dtype, -brightness, brightness)
    return jnp.clip(moved + light, 0.0, 1.0)


_LAYERS: dict[str, Callable[[Shape, int], tuple[dict[str, tuple[int, ...]], Apply]]] = {
    "linear": lambda shape, classes: _dense_layers(math.prod(shape), classes),
    "dense-128": lambda shape, classes: _dense_layers(math.prod(shape), 128, classes),
    "dense-300-100": lambda shape, classes: _dense_layers(math.prod(shape), 300, 100, classes),
    "lenet5": _lenet5,
    "fruit-cnn": lambda shape, classes: _convolutional(shape, classes, (16, 32, 64, 64), (128,), augmented=True),
    "vgg-small": lambda shape, classes: _convolutional(shape, classes, (32, 64), (1024, 1024)),
}


def build(name: str, input_shape: Sequence[int], classes: int, seed: int, dtype: str) -> Network:
    """A network of the zoo for images of (height, width, channels), with the weights that the seed decides."""
    if name == ARRAY_MODEL or zoo_model(name).task == "language-model":
        raise BadRequest(f"--model {name!r} takes no images: choose {', '.join(_LAYERS)} or resnet20")
    height, width, channels = input_shape
    check_shape(name, (height, width, channels))
    generator = np.random.default_rng(seed)
    if name == "resnet20":
        from velodrome.models.jax_resnet import resnet20

        return resnet20((height, width, channels), classes, generator, dtype)
    shapes, apply = _LAYERS[name]((height, width, channels), classes)
    weights: Values = {}
    for layer, shape in shapes.items():
        # Glorot's uniform distribution for weights, zero for biases.
        limit = math.sqrt(6.0 / ((shape[0] + shape[1]) * math.prod(shape[2:])))
        weights[f"{layer}.weight"] = generator.uniform(-limit, limit, shape).astype(dtype)
        weights[f"{layer}.bias"] = np.zeros(shape[0], dtype)
    return Network(weights, apply, loops="conv1" not in shapes)


# -- language models


def _lstm(tensors: Tensors, layer: int, inputs: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
    """Outputs (columns, rows, units) of one layer, and its state after them."""
    recurrent = tensors[f"lstm.weight_hh_l{layer}"].T
    bias = tensors[f"lstm.bias_ih_l{layer}"] + tensors[f"lstm.bias_hh_l{layer}"]

    def step(state: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        hidden, cell = state
        into, forget, new, out = jnp.split(gates + hidden @ recurrent, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    # One multiplication for the inputs of all steps.
    return lax.scan(step, state, inputs @ tensors[f"lstm.weight_ih_l{layer}"].T + bias)


def _language_model(vocabulary: int, units: int, layers: int, limit: float, seed: int, dtype: str) -> TextNetwork:
    generator = np.random.default_rng(seed)

    def uniform(*shape: int) -> NDArray[Any]:
        return generator.uniform(-limit, limit, shape).astype(dtype)

    weights: Values = {"embedding.weight": uniform(vocabulary, units)}
    for layer in range(layers):
        weights[f"lstm.weight_ih_l{layer}"] = uniform(4 * units, units)
        weights[f"lstm.weight_hh_l{layer}"] = uniform(4 * units, units)
        weights[f"lstm.bias_ih_l{layer}"] = uniform(4 * units)
    weights |= {"softmax.weight": uniform(vocabulary, units), "softmax.bias": uniform(vocabulary)}
    # Each layer has one bias as in Keras: PyTorch's second is not trained.
    buffers: Values = {f"lstm.bias_hh_l{layer}": np.zeros(4 * units, dtype) for layer in range(layers)}

    def apply(tensors: Tensors, words: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        hidden, after = tensors["embedding.weight"][words.T], []
        for layer in range(layers):
            last, hidden = _lstm(tensors, layer, hidden, state[layer])
            after.append(last)
        return dense(tensors, "softmax", hidden), tuple(after)

    def initial_state(rows: int) -> Any:
        return tuple((np.zeros((rows, units), dtype), np.zeros((rows, units), dtype)) for _ in range(layers))

    return TextNetwork(weights, apply, initial_state, buffers)


def build_text(name: str, vocabulary: int, context: int, seed: int, dtype: str) -> TextNetwork:
    """A language model of the zoo with the weights that the seed decides; `context` is the largest number of words that
    a model without carried state reads at a time."""
    if zoo_model(name).task != "language-model":
        raise BadRequest(f"model {name!r} reads images, and the data set is a text: choose {text_models()}")
    if name == "gpt-mini":
        from velodrome.models.jax_gpt import gpt

        return gpt(vocabulary, context, np.random.default_rng(seed), dtype)
    return _language_model(vocabulary, units=200, layers=2, limit=0.1, seed=seed, dtype=dtype)
