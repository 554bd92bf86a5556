"""Models as a user would write them for Keras, for tests of every strategy."""

from __future__ import annotations

import random
from typing import Any

import keras
import tensorflow as tf
from keras import layers

Shape = tuple[int, int, int]


def conv(input_shape: Shape, classes: int, filters: int = 3) -> keras.Model:
    """A convolution, because its gradient aborts on an empty batch."""
    return keras.Sequential([
        keras.Input(input_shape), layers.Conv2D(filters, 3, activation="tanh"), layers.Flatten(), layers.Dense(classes),
    ])


def wide(input_shape: Shape, classes: int) -> keras.Model:
    """A layer of half a mebibyte in float32: large enough to be split over servers."""
    return keras.Sequential([
        keras.Input(input_shape), layers.Flatten(), layers.Dense(2048, activation="relu"), layers.Dense(classes),
    ])


def lively(input_shape: Shape, classes: int) -> keras.Model:
    """Batch normalisation, dropout, a frozen layer, a penalty and a weight without gradient."""
    inputs = keras.Input(input_shape)
    hidden = layers.Conv2D(4, 3, trainable=False)(inputs)
    hidden = layers.BatchNormalization(momentum=0.5)(hidden)
    hidden = layers.Dropout(0.3)(layers.Flatten()(hidden))
    hidden = Unused()(layers.Dense(16, activation="relu", kernel_regularizer="l2")(hidden))
    return keras.Model(inputs, layers.Dense(classes)(hidden))


class Unused(layers.Layer):
    """Has a trainable weight that nothing depends on."""

    def build(self, shape: Any) -> None:
        self.idle = self.add_weight(shape=(3,))

    def call(self, inputs: Any) -> Any:
        return inputs


def dense(input_shape: Shape, classes: int, activation: str | None = None, factor: float = 1.0) -> keras.Model:
    """One layer, whose weights start this many times larger than usual."""
    start = keras.initializers.RandomUniform(-0.3 * factor, 0.3 * factor)
    layer = layers.Dense(classes, activation=activation, kernel_initializer=start)
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layer])


class Written(keras.Model):
    """A subclass that knows its shapes only when it is called."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flatten, self.dense = layers.Flatten(), layers.Dense(classes)

    def call(self, inputs: Any) -> Any:
        return self.dense(self.flatten(inputs))


def written(input_shape: Shape, classes: int) -> keras.Model:
    return Written(classes)


def no_model(input_shape: Shape, classes: int) -> str:
    return "a string"


def standardizing(input_shape: Shape, classes: int, mean: list[float], variance: list[float]) -> keras.Model:
    """The same network as `conv` behind its own standardization."""
    return keras.Sequential([
        keras.Input(input_shape), layers.Normalization(mean=mean, variance=variance),
        *conv(input_shape, classes).layers,
    ])


def rescaling(input_shape: Shape, classes: int, augmented: bool = False) -> keras.Model:
    """The same network as `conv` behind a Rescaling that is nested two models deep, as those of keras.applications."""
    inputs = keras.Input(input_shape)
    inner = keras.Model(inputs, layers.Rescaling(1 / 255, name="by")(layers.Resizing(*input_shape[:2])(inputs)))
    first = keras.Sequential([layers.RandomFlip("horizontal") if augmented else layers.Identity(), inner])
    outer = keras.Input(input_shape)
    return keras.Model(outer, conv(input_shape, classes)(first(outer)))


class Subclassed(keras.Model):
    """Its Rescaling is its first layer."""

    def __init__(self, classes: int, *first: layers.Layer) -> None:
        super().__init__()
        self.first, self.flatten, self.dense = list(first), layers.Flatten(), layers.Dense(classes)

    def call(self, inputs: Any) -> Any:
        for layer in self.first:
            inputs = layer(inputs)
        return self.dense(self.flatten(inputs))


class Drawing(layers.Layer):
    """Scales by a number that Python's generator gives when a graph is traced, and by one of its own in every step."""

    def __init__(self, by_step: bool) -> None:
        super().__init__()
        self.generator = tf.random.Generator.from_seed(1) if by_step else None

    def call(self, inputs: Any, training: bool = False) -> Any:
        factor = 1 + random.random()
        if self.generator is not None and training:
            factor += self.generator.uniform((), dtype=inputs.dtype)
        return inputs * factor


def drawing(input_shape: Shape, classes: int, by_step: bool = False) -> keras.Model:
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), Drawing(by_step), layers.Dense(classes)])


def penalised(input_shape: Shape, classes: int, penalty: float = 0.0) -> keras.Model:
    """One layer with a penalty on its kernel; its bias has none."""
    regularizer = keras.regularizers.L2(penalty)
    return keras.Sequential([
        keras.Input(input_shape), layers.Flatten(), layers.Dense(classes, kernel_regularizer=regularizer),
    ])


def make_optimizer() -> keras.optimizers.Optimizer:
    """An optimizer that no job names."""
    return keras.optimizers.RMSprop(0.01, momentum=0.5)


def make_clipped() -> keras.optimizers.Optimizer:
    """Clips gradients much smaller than they are."""
    return keras.optimizers.SGD(1 / 16, momentum=0.9, clipnorm=1 / 32)


def make_clipped_as_a_whole() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(1 / 16, momentum=0.9, global_clipnorm=1 / 32)


def make_clipped_by_value() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(1 / 16, momentum=0.9, clipvalue=1 / 512)


def make_averaging() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(1 / 16, use_ema=True)


def make_accumulating() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(1 / 16, gradient_accumulation_steps=2)


def make_scaling() -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1 / 16))


def make_nadam() -> keras.optimizers.Optimizer:
    """One that assigns to a variable of its own in each replica, which Keras cannot do under every strategy."""
    return keras.optimizers.Nadam(0.01)
