"""A user's networks and task for `benchmarks/own.py`: those of the zoo, by `module:name`, for Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
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


class Classify:
    """Classification, as a task of the user's own."""

    better = {"accuracy": "more"}  # noqa: RUF012 (as users write it)

    def loss(self, model: keras.Model, batch: Any) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.y, logits=model(batch.x, training=True))

    def metrics(self, outputs: tf.Tensor, batch: Any) -> dict[str, tf.Tensor]:
        right = tf.equal(tf.argmax(outputs, axis=1), tf.cast(batch.y, tf.int64))
        return {"accuracy": tf.reduce_sum(tf.cast(right, tf.float64))}
