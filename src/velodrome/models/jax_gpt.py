"""The small decoder-only transformer of `torch_gpt` as a function on JAX arrays, with its names and layouts."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from velodrome.models.jax_zoo import Tensors, TextNetwork, Values, dense

LAYERS, WIDTH, HEADS = 4, 128, 4
#: Standard deviation of the initial weights; that of layers whose outputs are added to the residual stream is divided
#: by the square root of their number, as in GPT-2.
DEVIATION = 0.02
_EPSILON = 1e-5


def _normalised(tensors: Tensors, name: str, stream: jax.Array) -> jax.Array:
    mean = stream.mean(-1, keepdims=True)
    centred = stream - mean
    scaled = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + _EPSILON)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _attended(tensors: Tensors, block: str, stream: jax.Array) -> jax.Array:
    rows, columns, width = stream.shape
    query, key, value = (
        part.reshape(rows, columns, HEADS, width // HEADS).transpose(0, 2, 1, 3)
        for part in jnp.split(dense(tensors, f"{block}.qkv", stream), 3, axis=-1)
    )
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(width // HEADS)
    seen = jnp.tril(jnp.ones((columns, columns), bool))
    heads = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ value
    return dense(tensors, f"{block}.attended", heads.transpose(0, 2, 1, 3).reshape(rows, columns, width))


def _apply(tensors: Tensors, words: jax.Array, state: Any) -> tuple[jax.Array, Any]:
    stream = tensors["words.weight"][words] + tensors["positions.weight"][: words.shape[1]]
    for number in range(LAYERS):
        block = f"blocks.{number}"
        stream = stream + _attended(tensors, block, _normalised(tensors, f"{block}.norm1", stream))
        hidden = dense(tensors, f"{block}.expand", _normalised(tensors, f"{block}.norm2", stream))
        stream = stream + dense(tensors, f"{block}.contract", jax.nn.gelu(hidden, approximate=False))
    # The embedding of a word is also its row of the softmax, which has no bias.
    return (_normalised(tensors, "norm", stream) @ tensors["words.weight"].T).transpose(1, 0, 2), state


def gpt(vocabulary: int, context: int, generator: np.random.Generator, dtype: str) -> TextNetwork:
    """The network for rows of at most `context` words."""
    weights: Values = {}

    def normal(name: str, *shape: int) -> None:
        added = name.endswith(("attended", "contract"))
        deviation = DEVIATION / (math.sqrt(2 * LAYERS) if added else 1.0)
        weights[f"{name}.weight"] = (generator.standard_normal(shape) * deviation).astype(dtype)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(WIDTH, dtype), np.zeros(WIDTH, dtype)

    normal("words", vocabulary, WIDTH)
    normal("positions", context, WIDTH)
    for number in range(LAYERS):
        norm(f"blocks.{number}.norm1")
        norm(f"blocks.{number}.norm2")
        for name, after, before in (("qkv", 3, 1), ("attended", 1, 1), ("expand", 4, 1), ("contract", 1, 4)):
            normal(f"blocks.{number}.{name}", after * WIDTH, before * WIDTH)
            weights[f"blocks.{number}.{name}.bias"] = np.zeros(after * WIDTH, dtype)
    norm("norm")
    return TextNetwork(weights, _apply, lambda rows: ())
