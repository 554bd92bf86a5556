"""The zoo as plain functions on JAX arrays: builds the networks that `catalog/models.py` describes, with the names and
layouts of `torch_zoo`.

Images come as (count, height, width, channels), words as their places in a vocabulary; logits go out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from numpy.typing import NDArray

from velodrome.catalog import models as zoo
from velodrome.catalog.models import Lstm, Sized, Transformer, check_shape, models_for, text_models, zoo_model
from velodrome.errors import BadRequest

#: Of normalisation: what is added to the variance, and how fast moving statistics follow.
_EPSILON, _MOMENTUM = 1e-5, 0.1
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
    #: The state of a number of rows at the beginning of a text; empty for a network that carries none.
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


def _batch_normalised(
    tensors: Tensors, name: str, images: jax.Array, training: Training | None, changed: dict[str, jax.Array]
) -> jax.Array:
    """Batch normalisation; in training by the examples of this process that count, whose statistics are noted."""
    if training is None:
        mean, variance = tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"]
    else:
        # A process without examples has a batch that only fills up: its statistics stay as they are.
        some = training.counted.sum() > 0
        counted = jnp.where(some, training.counted, 1.0)[:, None, None, None]
        numbers = counted.sum() * images.shape[1] * images.shape[2]
        mean = (images * counted).sum((0, 1, 2)) / numbers
        variance = (jnp.square(images - mean) * counted).sum((0, 1, 2)) / numbers
        unbiased = variance * numbers / jnp.maximum(numbers - 1, 1)
        for statistic, value in (("running_mean", mean), ("running_var", unbiased)):
            before = tensors[f"{name}.{statistic}"]
            moved = before + _MOMENTUM * (lax.stop_gradient(value) - before)
            changed[f"{name}.{statistic}"] = jnp.where(some, moved, before)
    scale = tensors[f"{name}.weight"] * lax.rsqrt(variance + _EPSILON)
    return (images - mean) * scale + tensors[f"{name}.bias"]


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


# -- networks of images


def build(name: str, input_shape: Sequence[int], classes: int, seed: int, dtype: str) -> Network:
    """A network of the zoo for images of (height, width, channels), with the weights that the seed decides."""
    about, shape = zoo_model(name), tuple(input_shape)
    if about.takes != "images" or not isinstance(about.network, tuple):
        raise BadRequest(f"--model {name!r} takes no images: choose {', '.join(models_for('images'))}")
    check_shape(name, shape)
    layers = list(zoo.sized(about.network, shape, classes))
    weights, buffers = _initial(layers, about.start, np.random.default_rng(seed), dtype)

    def apply(tensors: Tensors, images: jax.Array, training: Training | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        hidden, changed = images, dict[str, jax.Array]()
        for each in layers:
            hidden = _computed(each, tensors, hidden, training, changed)
        return hidden, changed

    return Network(weights, apply, buffers, loops=not about.contains(zoo.Conv))


def _computed(
    each: Sized, tensors: Tensors, inputs: jax.Array, training: Training | None, changed: dict[str, jax.Array]
) -> jax.Array:
    """What a layer returns; buffers that it changes are noted."""
    name = each.name

    def normalised(number: int, inputs: jax.Array, stride: int = 1) -> jax.Array:
        convolved = convolution(tensors[f"{name}.conv{number}.weight"], inputs, 1, stride)
        return _batch_normalised(tensors, f"{name}.norm{number}", convolved, training, changed)

    match each.layer:
        case zoo.Augment():
            return inputs if training is None else augment(inputs, training.key)
        case zoo.Flatten():
            return inputs.reshape(len(inputs), -1)
        case zoo.Dense():
            return dense(tensors, name, inputs)
        case zoo.Conv(_, _, padding, bias):
            convolved = convolution(tensors[f"{name}.weight"], inputs, padding)
            return convolved + tensors[f"{name}.bias"] if bias else convolved
        case zoo.Norm():
            return _batch_normalised(tensors, name, inputs, training, changed)
        case zoo.Pool():
            return pooled(inputs)
        case zoo.Activation(function):
            return jax.nn.relu(inputs) if function == "relu" else jnp.tanh(inputs)
        case zoo.Residual(filters, stride):
            inside = normalised(2, jax.nn.relu(normalised(1, inputs, stride)))
            new = (0, filters - each.before[-1])
            return jax.nn.relu(inside + jnp.pad(inputs[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), new)))
        case zoo.Average():
            return inputs.mean((1, 2))
    raise NotImplementedError(each.layer)


def _initial(layers: Sequence[Sized], start: str, generator: np.random.Generator, dtype: str) -> tuple[Values, Values]:
    """The initial weights of layers, and their buffers."""
    weights: Values = {}
    buffers: Values = {}

    def draw(name: str, *shape: int) -> None:
        if start == "he-normal":
            drawn = generator.standard_normal(shape) * math.sqrt(2.0 / math.prod(shape[1:]))
        else:
            limit = math.sqrt(6.0 / ((shape[0] + shape[1]) * math.prod(shape[2:])))
            drawn = generator.uniform(-limit, limit, shape)
        weights[f"{name}.weight"] = drawn.astype(dtype)

    def norm(name: str, filters: int) -> None:
        zeros, ones = np.zeros(filters, dtype), np.ones(filters, dtype)
        weights[f"{name}.weight"], weights[f"{name}.bias"] = ones, zeros
        buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"] = zeros, ones

    for name, layer, before, after in layers:
        match layer:
            case zoo.Dense():
                draw(name, after[0], before[0])
                weights[f"{name}.bias"] = np.zeros(after[0], dtype)
            case zoo.Conv(filters, size, _, bias):
                draw(name, filters, before[-1], size, size)
                if bias:
                    weights[f"{name}.bias"] = np.zeros(filters, dtype)
            case zoo.Norm():
                norm(name, after[-1])
            case zoo.Residual(filters, _):
                for number, channels in ((1, before[-1]), (2, filters)):
                    draw(f"{name}.conv{number}", filters, channels, 3, 3)
                    norm(f"{name}.norm{number}", filters)
    return weights, buffers


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


def _language_model(vocabulary: int, about: Lstm, generator: np.random.Generator, dtype: str) -> TextNetwork:
    units, layers, limit = about.units, about.layers, about.limit

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


def _layer_normalised(tensors: Tensors, name: str, stream: jax.Array) -> jax.Array:
    mean = stream.mean(-1, keepdims=True)
    centred = stream - mean
    scaled = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + _EPSILON)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _attended(tensors: Tensors, block: str, stream: jax.Array, heads: int) -> jax.Array:
    rows, columns, width = stream.shape
    query, key, value = (
        part.reshape(rows, columns, heads, width // heads).transpose(0, 2, 1, 3)
        for part in jnp.split(dense(tensors, f"{block}.qkv", stream), 3, axis=-1)
    )
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(width // heads)
    seen = jnp.tril(jnp.ones((columns, columns), bool))
    mixed = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ value
    return dense(tensors, f"{block}.attended", mixed.transpose(0, 2, 1, 3).reshape(rows, columns, width))


def _transformer(
    vocabulary: int, context: int, about: Transformer, generator: np.random.Generator, dtype: str
) -> TextNetwork:
    """The network for rows of at most `context` words."""
    weights: Values = {}
    width = about.width

    def apply(tensors: Tensors, words: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        stream = tensors["words.weight"][words] + tensors["positions.weight"][: words.shape[1]]
        for number in range(about.layers):
            block = f"blocks.{number}"
            normalised = _layer_normalised(tensors, f"{block}.norm1", stream)
            stream = stream + _attended(tensors, block, normalised, about.heads)
            hidden = dense(tensors, f"{block}.expand", _layer_normalised(tensors, f"{block}.norm2", stream))
            stream = stream + dense(tensors, f"{block}.contract", jax.nn.gelu(hidden, approximate=False))
        # The embedding of a word is also its row of the softmax, which has no bias.
        return (_layer_normalised(tensors, "norm", stream) @ tensors["words.weight"].T).transpose(1, 0, 2), state

    def normal(name: str, *shape: int) -> None:
        weights[f"{name}.weight"] = (generator.standard_normal(shape) * about.deviation_of(name)).astype(dtype)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(width, dtype), np.zeros(width, dtype)

    normal("words", vocabulary, width)
    normal("positions", context, width)
    for number in range(about.layers):
        norm(f"blocks.{number}.norm1")
        norm(f"blocks.{number}.norm2")
        for name, after, before in (("qkv", 3, 1), ("attended", 1, 1), ("expand", 4, 1), ("contract", 1, 4)):
            normal(f"blocks.{number}.{name}", after * width, before * width)
            weights[f"blocks.{number}.{name}.bias"] = np.zeros(after * width, dtype)
    norm("norm")
    return TextNetwork(weights, apply, lambda rows: ())


def build_text(name: str, vocabulary: int, context: int, seed: int, dtype: str) -> TextNetwork:
    """A language model of the zoo with the weights that the seed decides; `context` is the largest number of words that
    a model without carried state reads at a time."""
    generator = np.random.default_rng(seed)
    match zoo_model(name).network:
        case Transformer() as transformer:
            return _transformer(vocabulary, context, transformer, generator, dtype)
        case Lstm() as lstm:
            return _language_model(vocabulary, lstm, generator, dtype)
    raise BadRequest(f"model {name!r} reads images, but the data set is a text: choose {text_models()}")
