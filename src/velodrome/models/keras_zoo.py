"""The zoo as Keras models: the same architectures as in `torch_zoo`, with the same initial distributions.

The residual network and the transformer need Keras 3; the others are also built by Keras 2.

Images come as (height, width, channels) with values from 0 to 1, arrays as they are; logits go out, or as many numbers
as were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
from keras import layers

from velodrome.catalog.models import ARRAY_MODEL, check_shape, text_models, zoo_model
from velodrome.errors import BadRequest


def _linear(classes: int) -> list[keras.Layer]:
    return [layers.Flatten(), layers.Dense(classes)]


def _dense_128(classes: int) -> list[keras.Layer]:
    return [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(classes)]


def _dense_300_100(classes: int) -> list[keras.Layer]:
    return [
        layers.Flatten(),
        layers.Dense(300, activation="relu"),
        layers.Dense(100, activation="relu"),
        layers.Dense(classes),
    ]


def _lenet5(classes: int) -> list[keras.Layer]:
    # The largest of a window is the same before and after tanh, which rises: pooling first asks for a quarter of them.
    return [
        layers.Conv2D(20, 5),
        layers.MaxPooling2D(2),
        layers.Activation("tanh"),
        layers.Conv2D(50, 5),
        layers.MaxPooling2D(2),
        layers.Activation("tanh"),
        layers.Flatten(),
        layers.Dense(500, activation="tanh"),
        layers.Dense(classes),
    ]


def _fruit_cnn(classes: int) -> list[keras.Layer]:
    return [
        layers.RandomFlip("horizontal"),
        layers.RandomTranslation(0.1, 0.1, fill_mode="nearest", interpolation="nearest"),
        layers.RandomBrightness(0.1, value_range=(0.0, 1.0)),
        *(layer for filters in (16, 32, 64, 64) for layer in (
            # The largest of a window is the same before and after relu, which never falls.
            layers.Conv2D(filters, 3, padding="same"), layers.MaxPooling2D(2), layers.Activation("relu"),
        )),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(classes),
    ]


def _mlp(outputs: int) -> list[keras.Layer]:
    return [
        layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(64, activation="relu"),
        layers.Dense(outputs),
    ]


def _vgg_small(classes: int) -> list[keras.Layer]:
    return [
        *(layer for filters in (32, 64) for layer in (
            layers.Conv2D(filters, 3, padding="same"), layers.MaxPooling2D(2), layers.Activation("relu"),
        )),
        layers.Flatten(),
        layers.Dense(1024, activation="relu"),
        layers.Dense(1024, activation="relu"),
        layers.Dense(classes),
    ]


_LAYERS: dict[str, Callable[[int], list[keras.Layer]]] = {
    "linear": _linear,
    "dense-128": _dense_128,
    "dense-300-100": _dense_300_100,
    "lenet5": _lenet5,
    "fruit-cnn": _fruit_cnn,
    "mlp": _mlp,
    "vgg-small": _vgg_small,
}

#: Units of the embedding and of each LSTM layer, and the limits of the initial weights.
_LSTM_SMALL, _LSTM_LAYERS, _LSTM_LIMIT = 200, 2, 0.1


def build(name: str, input_shape: Sequence[int], classes: int) -> keras.Model:
    """A model of the zoo with fresh weights, or `BadRequest` if it is unknown or cannot take the shape.

    Images are (height, width, channels); arrays may have any shape.
    """
    if name != ARRAY_MODEL:
        check_shape(name, input_shape)
    if name == "resnet20":
        from velodrome.models.keras_resnet import resnet20

        height, width, channels = input_shape
        return resnet20((height, width, channels), classes)
    return keras.Sequential([keras.Input(tuple(input_shape)), *_LAYERS[name](classes)], name=name)


def build_text(name: str, vocabulary: int, context: int = 20) -> keras.Model:
    """A language model of the zoo with fresh weights, or `BadRequest` if there is none of that name.

    `context` is the largest number of words that a model without carried state reads at a time.
    """
    if zoo_model(name).task != "language-model":
        raise BadRequest(f"model {name!r} reads images, and the data set is a text: choose {text_models()}")
    if name == "gpt-mini":
        from velodrome.models.keras_gpt import gpt_mini

        return gpt_mini(vocabulary, context)
    return _lstm_small(vocabulary)


def _lstm_small(vocabulary: int) -> keras.Model:
    """Words (rows, columns) and the state of every row go in, logits of the words after them (rows, columns,
    vocabulary) and the new state come out.

    All weights begin uniform, the biases too, and no gate is favoured, as in the model that Zaremba et al. published.
    """
    units = _LSTM_SMALL

    def uniform() -> keras.initializers.Initializer:
        return keras.initializers.RandomUniform(-_LSTM_LIMIT, _LSTM_LIMIT)

    words = keras.Input((None,), dtype="int32", name="words")
    state = [keras.Input((units,), name=f"{kind}{layer}") for layer in range(1, _LSTM_LAYERS + 1) for kind in "hc"]
    now, after = layers.Embedding(vocabulary, units, embeddings_initializer=uniform(), name="embedding")(words), []
    for layer in range(_LSTM_LAYERS):
        lstm = layers.LSTM(
            units, return_sequences=True, return_state=True, kernel_initializer=uniform(),
            recurrent_initializer=uniform(), bias_initializer=uniform(), unit_forget_bias=False,
            name=f"lstm{layer + 1}",
        )
        now, *ended = lstm(now, initial_state=state[2 * layer : 2 * layer + 2])
        after += ended
    softmax = layers.Dense(vocabulary, kernel_initializer=uniform(), bias_initializer=uniform(), name="softmax")
    return keras.Model([words, *state], [softmax(now), *after], name="lstm-small")
