"""The zoo as Keras models: builds the networks that `catalog/models.py` describes.

They consist of Keras' own layers and operations, so that a saved model loads without Velodrome. The residual network
and the transformer need Keras 3; the others are also built by Keras 2.

Images come as (height, width, channels) with values from 0 to 1, arrays as they are; logits go out, or as many numbers
as were asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import keras
from keras import layers

from velodrome.catalog import models as zoo
from velodrome.catalog.models import Lstm, Transformer, check_shape, text_models, zoo_model
from velodrome.errors import BadRequest

_EPSILON = 1e-5
#: Added to the scores of words that come later: their weight is zero in any number format.
_NEVER = -1e9


def build(name: str, input_shape: Sequence[int], classes: int) -> keras.Model:
    """A model of the zoo with fresh weights, or `BadRequest` if it is unknown or cannot take the shape.

    Images are (height, width, channels); arrays may have any shape.
    """
    about, shape = zoo_model(name), tuple(input_shape)
    if about.takes == "images":
        check_shape(name, shape)
    assert isinstance(about.network, tuple), "layers one after another"
    inputs, made = keras.Input(shape), _layers(about.network, about.start, classes)
    if not about.contains(zoo.Residual):
        return keras.Sequential([inputs, *made], name=name)
    now = inputs
    for layer in made:
        now = layer(now)
    return keras.Model(inputs, now, name=name)


def _layers(
    described: Sequence[zoo.Layer], start: str, classes: int
) -> Iterator[Callable[[keras.KerasTensor], keras.KerasTensor]]:
    """Layers, and functions of several."""
    weights = _he_normal if start == "he-normal" else keras.initializers.GlorotUniform
    before: zoo.Layer | None = None
    for layer, following in zip(described, (*described[1:], None), strict=True):
        match layer:
            case zoo.Augment():
                yield layers.RandomFlip("horizontal")
                yield layers.RandomTranslation(0.1, 0.1, fill_mode="nearest", interpolation="nearest")
                yield layers.RandomBrightness(0.1, value_range=(0.0, 1.0))
            case zoo.Flatten():
                yield layers.Flatten()
            case zoo.Dense(units):
                activation = following.function if isinstance(following, zoo.Activation) else None
                yield layers.Dense(units or classes, activation=activation, kernel_initializer=weights())
            case zoo.Conv(filters, size, padding, bias):
                around = "same" if padding else "valid"
                yield layers.Conv2D(filters, size, padding=around, use_bias=bias, kernel_initializer=weights())
            case zoo.Norm():
                yield _norm_of_batch()
            case zoo.Pool():
                yield layers.MaxPooling2D(2)
            case zoo.Residual(filters, stride):
                yield partial(_residual, filters=filters, stride=stride)
            case zoo.Average():
                yield layers.GlobalAveragePooling2D()
            case zoo.Activation(function) if not isinstance(before, zoo.Dense):
                yield layers.Activation(function)
        before = layer


def _residual(images: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Two convolutions and a shortcut around them; with `stride` 2, half the height and width go out."""
    hidden = layers.ReLU()(_norm_of_batch()(_convolved(images, filters, stride)))
    hidden = _norm_of_batch()(_convolved(hidden, filters))
    if stride > 1:
        # The paper's option A: every second pixel, and zeros for the new channels.
        images = layers.MaxPooling2D(1, strides=stride)(images)
        images = keras.ops.pad(images, [[0, 0], [0, 0], [0, 0], [0, filters - images.shape[-1]]])
    return layers.ReLU()(layers.Add()([hidden, images]))


def _convolved(images: keras.KerasTensor, filters: int, stride: int = 1) -> keras.KerasTensor:
    if stride > 1:
        # Of an even size, "same" would pad the end alone; the paper and PyTorch pad both sides.
        images = layers.ZeroPadding2D(1)(images)
    padding = "same" if stride == 1 else "valid"
    convolution = layers.Conv2D(
        filters, 3, stride, padding=padding, use_bias=False, kernel_initializer=_he_normal()
    )
    return convolution(images)


def _norm_of_batch() -> keras.Layer:
    """Batch normalisation with PyTorch's defaults."""
    return layers.BatchNormalization(momentum=0.9, epsilon=_EPSILON)


def _he_normal() -> keras.initializers.Initializer:
    """Variance 2 / fan-in. Keras' own `HeNormal` is truncated."""
    return keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")


def build_text(name: str, vocabulary: int, context: int = 20) -> keras.Model:
    """A language model of the zoo with fresh weights, or `BadRequest` if there is none of that name.

    `context` is the largest number of words that a model without carried state reads at a time.
    """
    match zoo_model(name).network:
        case Transformer() as transformer:
            return _transformer(name, vocabulary, context, transformer)
        case Lstm() as lstm:
            return _lstm(name, vocabulary, lstm)
    raise BadRequest(f"model {name!r} reads images, but the data set is a text: choose {text_models()}")


def _lstm(name: str, vocabulary: int, about: Lstm) -> keras.Model:
    """Words (rows, columns) and the state of every row go in, logits of the words after them (rows, columns,
    vocabulary) and the new state come out."""
    units = about.units

    def uniform() -> keras.initializers.Initializer:
        return keras.initializers.RandomUniform(-about.limit, about.limit)

    words = keras.Input((None,), dtype="int32", name="words")
    state = [keras.Input((units,), name=f"{kind}{layer}") for layer in range(1, about.layers + 1) for kind in "hc"]
    now, after = layers.Embedding(vocabulary, units, embeddings_initializer=uniform(), name="embedding")(words), []
    for layer in range(about.layers):
        lstm = layers.LSTM(
            units, return_sequences=True, return_state=True, kernel_initializer=uniform(),
            recurrent_initializer=uniform(), bias_initializer=uniform(), unit_forget_bias=False,
            name=f"lstm{layer + 1}",
        )
        now, *ended = lstm(now, initial_state=state[2 * layer : 2 * layer + 2])
        after += ended
    softmax = layers.Dense(vocabulary, kernel_initializer=uniform(), bias_initializer=uniform(), name="softmax")
    return keras.Model([words, *state], [softmax(now), *after], name=name)


def _transformer(name: str, vocabulary: int, context: int, about: Transformer) -> keras.Model:
    """Words (rows, columns), at most `context` columns, go in; logits of the words after them come out."""
    words = keras.Input((None,), dtype="int32", name="words")
    embedding = layers.ReversibleEmbedding(
        vocabulary, about.width, embeddings_initializer=_normal(about, "words"), name="words_embedding"
    )
    # Places in the row, from what is there: a functional model cannot ask for the length of its input.
    places = keras.ops.cumsum(keras.ops.ones_like(words), axis=1) - 1
    positions = layers.Embedding(
        context, about.width, embeddings_initializer=_normal(about, "positions"), name="positions"
    )(places)
    later = keras.ops.expand_dims(places, 1) > keras.ops.expand_dims(places, 2)
    mask = keras.ops.expand_dims(keras.ops.cast(later, keras.config.floatx()) * _NEVER, 1)
    stream = embedding(words) + positions
    for block in range(1, about.layers + 1):
        stream = stream + _attention(_norm(stream, f"block{block}_norm1"), mask, f"block{block}", about)
        hidden = _dense(4, f"block{block}_expand", about, activation="gelu")(_norm(stream, f"block{block}_norm2"))
        stream = stream + _dense(1, f"block{block}_contract", about)(hidden)
    return keras.Model(words, embedding(_norm(stream, "norm"), reverse=True), name=name)


def _attention(
    stream: keras.KerasTensor, mask: keras.KerasTensor, name: str, about: Transformer
) -> keras.KerasTensor:
    """Each word's mixture of the words so far, by several heads."""
    count, size = about.heads, about.width // about.heads
    split = layers.Reshape((-1, 3 * count, size))(_dense(3, f"{name}_qkv", about)(stream))
    heads = layers.Permute((2, 1, 3))(split)
    query, key, value = (heads[:, first : first + count] for first in range(0, 3 * count, count))
    scores = keras.ops.matmul(query * (1 / math.sqrt(size)), keras.ops.transpose(key, (0, 1, 3, 2)))
    mixed = keras.ops.matmul(layers.Activation("softmax")(scores + mask), value)
    joined = layers.Reshape((-1, about.width))(layers.Permute((2, 1, 3))(mixed))
    return _dense(1, f"{name}_attended", about)(joined)


def _dense(widths: int, name: str, about: Transformer, activation: str | None = None) -> layers.Dense:
    """A layer `widths` times as wide as the transformer."""
    return layers.Dense(
        widths * about.width, activation=activation, kernel_initializer=_normal(about, name), name=name
    )


def _norm(stream: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.LayerNormalization(epsilon=_EPSILON, name=name)(stream)


def _normal(about: Transformer, name: str) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=about.deviation_of(name))
