"""Networks as a user writes them, for `benchmarks/own.py`: those of the zoo, by `module:function`, for Keras."""

from __future__ import annotations

import keras
from keras import layers


def dense_300_100(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    return keras.Sequential([
        keras.Input(input_shape), layers.Flatten(), layers.Dense(300, activation="relu"),
        layers.Dense(100, activation="relu"), layers.Dense(classes),
    ])


def lenet5(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    return keras.Sequential([
        keras.Input(input_shape), layers.Conv2D(20, 5), layers.MaxPooling2D(2), layers.Activation("tanh"),
        layers.Conv2D(50, 5), layers.MaxPooling2D(2), layers.Activation("tanh"), layers.Flatten(),
        layers.Dense(500, activation="tanh"), layers.Dense(classes),
    ])
