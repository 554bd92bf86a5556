"""ResNet-20 of `torch_resnet` as a function on JAX arrays, with its names and layouts."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from velodrome.models.jax_zoo import Network, Shape, Tensors, Training, Values, convolution, dense

#: Filters of the stages, and blocks of each: 6 · 3 + 2 = 20 layers with weights.
STAGES, BLOCKS = (16, 32, 64), 3
_EPSILON, _MOMENTUM = 1e-5, 0.1


def _normalised(
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


def _blocks() -> list[tuple[str, int, int, int]]:
    """Name, filters before and after, and stride of every block."""
    found, before = [], STAGES[0]
    for stage, filters in enumerate(STAGES, start=1):
        for block in range(1, BLOCKS + 1):
            found.append((f"stage{stage}_block{block}", before, filters, 1 if before == filters else 2))
            before = filters
    return found


def _apply(tensors: Tensors, images: jax.Array, training: Training | None) -> tuple[jax.Array, dict[str, jax.Array]]:
    changed: dict[str, jax.Array] = {}

    def layer(name: str, norm: str, inputs: jax.Array, stride: int = 1) -> jax.Array:
        return _normalised(tensors, norm, convolution(tensors[f"{name}.weight"], inputs, 1, stride), training, changed)

    hidden = jax.nn.relu(layer("conv", "norm", images))
    for name, before, after, stride in _blocks():
        inside = jax.nn.relu(layer(f"{name}.conv1", f"{name}.norm1", hidden, stride))
        # Where a stage begins, the shortcut is subsampled and the new channels are zero.
        shortcut = jnp.pad(hidden[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (0, after - before)))
        hidden = jax.nn.relu(layer(f"{name}.conv2", f"{name}.norm2", inside) + shortcut)
    return dense(tensors, "dense", hidden.mean((1, 2))), changed


def resnet20(shape: Shape, classes: int, generator: np.random.Generator, dtype: str) -> Network:
    """The network for images of (height, width, channels), with weights of variance 2 / fan-in (He et al. 2015)."""
    weights: Values = {}
    buffers: Values = {}

    def normal(name: str, *kernel: int) -> None:
        deviation = math.sqrt(2.0 / math.prod(kernel[1:]))
        weights[f"{name}.weight"] = (generator.standard_normal(kernel) * deviation).astype(dtype)

    def norm(name: str, filters: int) -> None:
        zeros, ones = np.zeros(filters, dtype), np.ones(filters, dtype)
        weights[f"{name}.weight"], weights[f"{name}.bias"] = ones, zeros
        buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"] = zeros, ones

    normal("conv", STAGES[0], shape[2], 3, 3)
    norm("norm", STAGES[0])
    for name, before, after, _ in _blocks():
        normal(f"{name}.conv1", after, before, 3, 3)
        norm(f"{name}.norm1", after)
        normal(f"{name}.conv2", after, after, 3, 3)
        norm(f"{name}.norm2", after)
    normal("dense", classes, STAGES[-1])
    weights["dense.bias"] = np.zeros(classes, dtype)
    return Network(weights, _apply, buffers, loops=False)
