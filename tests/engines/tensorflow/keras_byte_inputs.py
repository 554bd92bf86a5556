"""Models that scale their input in code, as if it were bytes or not."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

SCALES = {
    "divide": lambda x: x / 255,
    "multiply": lambda x: x * (1 / 127.5) - 1,
    "subtract": lambda x: (tf.cast(x, tf.float32) - [123.7]) / [58.4],
    "unit": lambda x: (x - 0.5) / 0.25,
    "plain": lambda x: x,
}


class Scaled(keras.Model):
    def __init__(self, classes: int, scale: str) -> None:
        super().__init__()
        self.scale = SCALES[scale]
        self.flatten, self.dense = layers.Flatten(), layers.Dense(classes)

    def call(self, images: Any) -> Any:
        return self.dense(self.flatten(self.scale(images)))


def build(input_shape: tuple[int, int, int], classes: int, scale: str) -> keras.Model:
    if scale == "lambda":
        return keras.Sequential([
            keras.Input(input_shape), layers.Lambda(lambda x: x / 255.0), layers.Flatten(), layers.Dense(classes),
        ])
    return Scaled(classes, scale)
