"""A small decoder-only transformer in Keras: the same network as in `torch_gpt`, with the same initial distribution.

It consists of Keras' own layers and operations, so that a saved model loads without Velodrome.
"""

from __future__ import annotations

import math

import keras
from keras import layers, ops

LAYERS, WIDTH, HEADS = 4, 128, 4
_DEVIATION, _EPSILON = 0.02, 1e-5
#: Added to the scores of words that come later: their weight is zero in any number format.
_NEVER = -1e9


def gpt_mini(vocabulary: int, context: int) -> keras.Model:
    """Words (rows, columns), at most `context` columns, go in; logits of the words after them come out."""
    words = keras.Input((None,), dtype="int32", name="words")
    embedding = layers.ReversibleEmbedding(vocabulary, WIDTH, embeddings_initializer=_normal(), name="words_embedding")
    # Places in the row, from what is there: a functional model cannot ask for the length of its input.
    places = ops.cumsum(ops.ones_like(words), axis=1) - 1
    positions = layers.Embedding(context, WIDTH, embeddings_initializer=_normal(), name="positions")(places)
    later = ops.expand_dims(places, 1) > ops.expand_dims(places, 2)
    mask = ops.expand_dims(ops.cast(later, keras.config.floatx()) * _NEVER, 1)
    stream = embedding(words) + positions
    for block in range(1, LAYERS + 1):
        stream = stream + _attention(_norm(stream, f"block{block}_norm1"), mask, f"block{block}")
        hidden = _dense(4 * WIDTH, f"block{block}_expand", activation="gelu")(_norm(stream, f"block{block}_norm2"))
        stream = stream + _dense(WIDTH, f"block{block}_contract", added=True)(hidden)
    return keras.Model(words, embedding(_norm(stream, "norm"), reverse=True), name="gpt-mini")


def _attention(stream: keras.KerasTensor, mask: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Each word's mixture of the words so far, by four heads."""
    size = WIDTH // HEADS
    split = layers.Reshape((-1, 3 * HEADS, size))(_dense(3 * WIDTH, f"{name}_qkv")(stream))
    heads = layers.Permute((2, 1, 3))(split)
    query, key, value = (heads[:, first : first + HEADS] for first in range(0, 3 * HEADS, HEADS))
    scores = ops.matmul(query * (1 / math.sqrt(size)), ops.transpose(key, (0, 1, 3, 2)))
    mixed = ops.matmul(layers.Activation("softmax")(scores + mask), value)
    return _dense(WIDTH, f"{name}_attended", added=True)(layers.Reshape((-1, WIDTH))(layers.Permute((2, 1, 3))(mixed)))


def _dense(units: int, name: str, *, activation: str | None = None, added: bool = False) -> layers.Dense:
    return layers.Dense(units, activation=activation, kernel_initializer=_normal(added=added), name=name)


def _norm(stream: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.LayerNormalization(epsilon=_EPSILON, name=name)(stream)


def _normal(*, added: bool = False) -> keras.initializers.Initializer:
    """Smaller for layers whose outputs are added to the residual stream, as in GPT-2."""
    return keras.initializers.RandomNormal(stddev=_DEVIATION / (math.sqrt(2 * LAYERS) if added else 1.0))
