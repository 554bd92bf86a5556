"""Networks of one dense layer that end as users' Keras models do: in logits, in a softmax of some kind, or past one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

Shape = tuple[int, int, int]


class Written(keras.Model):
    """A subclass that ends in a function of its own."""

    def __init__(self, classes: int, end: Callable[[Any, bool], Any]) -> None:
        super().__init__()
        self.flatten, self.dense, self.end = layers.Flatten(), layers.Dense(classes), end

    def call(self, images: Any, training: bool = False) -> Any:
        return self.end(self.dense(self.flatten(images)), training)


class Wrapped(keras.Model):
    def __init__(self, inner: keras.Model) -> None:
        super().__init__()
        self.inner = inner

    def call(self, images: Any, training: bool = False) -> Any:
        return self.inner(images, training=training)


def _hand_written(logits: tf.Tensor) -> tf.Tensor:
    powers = tf.exp(logits - tf.reduce_max(logits, axis=1, keepdims=True))
    return powers / tf.reduce_sum(powers, axis=1, keepdims=True)


ENDS: dict[str, Callable[[Any, bool], Any]] = {
    "tf-softmax": lambda logits, _: tf.nn.softmax(logits),
    "ops-softmax": lambda logits, _: keras.ops.softmax(logits, axis=1),
    "activations-softmax": lambda logits, _: keras.activations.softmax(logits),
    "indexed": lambda logits, _: tf.nn.softmax(logits[:, None, :])[:, 0],
    "in-evaluation": lambda logits, training: logits if training else tf.nn.softmax(logits),
    "in-training": lambda logits, training: tf.nn.softmax(logits) if training else logits,
    "log-softmax": lambda logits, _: tf.nn.log_softmax(logits),
    "written-logits": lambda logits, _: logits,
    "tf-sigmoid": lambda logits, _: tf.sigmoid(logits),
    # Not to be mistaken for a softmax over the classes.
    "scaled": lambda logits, _: tf.nn.softmax(logits) * 3,
    "over-examples": lambda logits, _: tf.nn.softmax(logits, axis=0),
    "reversed": lambda logits, _: tf.nn.softmax(logits)[:, ::-1],
    "hand-written": lambda logits, _: _hand_written(logits),
    "in-a-function": lambda logits, _: tf.function(tf.nn.softmax)(logits),
    "tuple": lambda logits, _: (logits[:, :3], logits),
    "list": lambda logits, _: [logits, logits, logits],
    "dictionary": lambda logits, _: {"classes": logits, "extra": logits},
    "tuple-in-training": lambda logits, training: (logits[:, :3], logits) if training else logits,
}


def _sequential(input_shape: Shape, *more: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), *more])


def _functional(input_shape: Shape, end: Callable[[Any], Any]) -> keras.Model:
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, end(layers.Flatten()(inputs)))


def build(input_shape: Shape, classes: int, end: str) -> keras.Model:
    dense = layers.Dense(classes)
    match end:
        case "activation":
            return _sequential(input_shape, layers.Dense(classes, activation="softmax"))
        case "layer":
            return _sequential(input_shape, dense, layers.Softmax())
        case "activation-layer":
            return _functional(input_shape, lambda flat: layers.Activation("softmax")(dense(flat)))
        case "functional":
            return _functional(input_shape, layers.Dense(classes, activation="softmax"))
        case "functional-ops":
            return _functional(input_shape, lambda flat: keras.ops.softmax(dense(flat)))
        case "nested":
            inner = keras.Sequential([dense, keras.Sequential([layers.Softmax()])])
            return keras.Sequential([keras.Input(input_shape), layers.Flatten(), inner])
        case "wrapped":
            return Wrapped(_sequential(input_shape, layers.Dense(classes, activation="softmax")))
        case "convolutional":
            spatial = (layers.Reshape((1, 1, -1)), layers.Conv2D(classes, 1), layers.Softmax(), layers.Flatten())
            return _sequential(input_shape, *spatial)
        case "dropout-after":
            return _sequential(input_shape, dense, layers.Softmax(), layers.Dropout(0.0))
        case "logits":
            return _sequential(input_shape, dense)
        case "sigmoid":
            return _sequential(input_shape, layers.Dense(classes, activation="sigmoid"))
        case "sigmoid-layer":
            return _functional(input_shape, lambda flat: layers.Activation("sigmoid")(dense(flat)))
        case "softmax-then-dense":
            return _sequential(input_shape, dense, layers.Softmax(), layers.Dense(classes))
        case "average":
            both = [layers.Dense(classes, activation="softmax") for _ in range(2)]
            return _functional(input_shape, lambda flat: layers.Average()([layer(flat) for layer in both]))
    return Written(classes, ENDS[end])
