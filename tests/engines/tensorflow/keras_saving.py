"""Keras models that are saved in different ways: plain ones, and those that need the user's code to be loaded."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

Shape = tuple[int, int, int]


class Scaled(layers.Layer):
    """A layer of the user's own, with a weight and a setting."""

    def __init__(self, factor: float = 2.0, **more: Any) -> None:
        super().__init__(**more)
        self.factor = factor

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale * self.factor


@keras.saving.register_keras_serializable(package="tests")
class Registered(Scaled):
    pass


class Forgetful(Scaled):
    """Loses its setting when it is saved."""

    def get_config(self) -> dict[str, Any]:
        return layers.Layer.get_config(self)


class Blocks(keras.Model):
    """A subclass that Keras cannot save, with layers in lists of lists."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flatten, self.last = layers.Flatten(), layers.Dense(classes)
        self.blocks = [[layers.Dense(12), layers.BatchNormalization()] for _ in range(2)]

    def call(self, images: Any, training: bool = False) -> Any:
        flat = self.flatten(images)
        for dense, norm in self.blocks:
            flat = norm(dense(flat), training=training)
        return self.last(flat)


class Answer:
    """What `Answering` returns: no tensor, and nothing that TensorFlow looks into."""

    def __init__(self, logits: Any) -> None:
        self.logits, self.loss = logits, None


class Answering(Blocks):
    def call(self, images: Any, training: bool = False) -> Any:
        return Answer(super().call(images, training))


class Named(keras.Model):
    """A functional model with a class of its own."""


def half(inputs: Any) -> Any:
    return tf.nn.relu(inputs) * 0.5


def _with(input_shape: Shape, classes: int, *between: layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), *between, layers.Dense(classes)])


def plain(input_shape: Shape, classes: int) -> keras.Model:
    return _with(input_shape, classes, layers.Dense(7, activation="relu"), layers.BatchNormalization())


def custom(input_shape: Shape, classes: int, factor: float = 3.0) -> keras.Model:
    return _with(input_shape, classes, Scaled(factor))


def registered(input_shape: Shape, classes: int) -> keras.Model:
    return _with(input_shape, classes, Registered(3.0))


def function(input_shape: Shape, classes: int) -> keras.Model:
    return _with(input_shape, classes, layers.Dense(7, activation=half))


def code(input_shape: Shape, classes: int) -> keras.Model:
    return _with(input_shape, classes, layers.Lambda(lambda inputs: inputs * 2.0))


def named(input_shape: Shape, classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    return Named(inputs, layers.Dense(classes)(layers.Flatten()(inputs)))


def compiled(input_shape: Shape, classes: int) -> keras.Model:
    model = _with(input_shape, classes)
    model.compile(optimizer="adam", loss=lambda labels, outputs: tf.reduce_mean(outputs))
    return model


def forgetful(input_shape: Shape, classes: int) -> keras.Model:
    return _with(input_shape, classes, Forgetful(3.0))


def written(input_shape: Shape, classes: int) -> keras.Model:
    return Blocks(classes)


def answering(input_shape: Shape, classes: int) -> keras.Model:
    return Answering(classes)


_factors = iter(range(1, 100))


def drifting(input_shape: Shape, classes: int) -> keras.Model:
    """The same weights, and another network at each call."""

    class Drifting(Answering):
        factor = float(next(_factors))

        def call(self, images: Any, training: bool = False) -> Any:
            return Answer(super().call(images, training).logits * self.factor)

    return Drifting(classes)


def local(input_shape: Shape, classes: int) -> keras.Model:
    class Local(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * 2.0

    return _with(input_shape, classes, Local())


_widths = iter(range(3, 100))


def changing(input_shape: Shape, classes: int) -> keras.Model:
    """Another network at each call."""
    model = Blocks(classes)
    model.last, model.blocks = layers.Dense(classes), [[layers.Dense(next(_widths)), layers.BatchNormalization()]]
    return model
