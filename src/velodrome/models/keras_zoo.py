"""The zoo as Keras 3 models: the same architectures as in `torch_zoo`, with Keras' own initial distribution.

Images come as (height, width, channels) with values from 0 to 1; logits go out.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers

from velodrome.models.zoo import check_shape

Shape = tuple[int, int, int]


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


_LAYERS: dict[str, Callable[[int], list[keras.Layer]]] = {
    "linear": _linear,
    "dense-128": _dense_128,
    "dense-300-100": _dense_300_100,
    "lenet5": _lenet5,
}


def build(name: str, input_shape: Shape, classes: int) -> keras.Model:
    """A model of the zoo with fresh weights, or `BadRequest` if it is unknown or cannot take the shape."""
    check_shape(name, input_shape)
    return keras.Sequential([keras.Input(input_shape), *_LAYERS[name](classes)], name=name)
