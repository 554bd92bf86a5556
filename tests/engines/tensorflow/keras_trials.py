"""Keras models that fail, or change, only on some batches or in one mode: what the trial before training must find."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

Shape = tuple[int, int, int]


class Fixed(keras.Model):
    """Takes batches of one size, which stands in its code."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.size, self.dense = size, layers.Dense(classes)

    def call(self, images: Any) -> Any:
        return self.dense(tf.reshape(images, [self.size, 64]))


class Noise(layers.Layer):
    """Draws from Python's and NumPy's generators while its graph is made."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs * (1.0 + random.random() + np.random.rand()) if training else inputs


class OwnStep(keras.Model):
    """Has a training step of its own."""

    def train_step(self, data: Any) -> Any:
        raise NotImplementedError


def declared(input_shape: Shape, classes: int, size: int = 16) -> keras.Model:
    """Takes batches of one size, which its input declares."""
    inputs = keras.Input(input_shape, batch_size=size)
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(inputs)))


def written(input_shape: Shape, classes: int, size: int = 16) -> keras.Model:
    return Fixed(size, classes)


def changing(input_shape: Shape, classes: int) -> keras.Model:
    return keras.Sequential([
        keras.Input(input_shape), layers.Flatten(), layers.BatchNormalization(momentum=0.5), layers.Dropout(0.5),
        Noise(), layers.Dense(classes, activation="softmax"),
    ])


def lenet_for_28(input_shape: Shape, classes: int) -> keras.Model:
    convolutions = keras.Sequential([layers.Conv2D(4, 5), layers.MaxPooling2D(2), layers.Flatten()])
    dense = layers.Dense(classes)
    dense.build((None, 4 * 12 * 12))

    class LeNet(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions, self.dense = convolutions, dense

        def call(self, images: Any) -> Any:
            return self.dense(self.convolutions(images))

    return LeNet()


def compiled(input_shape: Shape, classes: int) -> keras.Model:
    model = keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(classes)])
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["acc"])
    return model


def own_step(input_shape: Shape, classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    return OwnStep(inputs, layers.Dense(classes)(layers.Flatten()(inputs)))


def of_torch(input_shape: Shape, classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def of_torch_that_fails(input_shape: Shape, classes: int) -> Any:
    import torch
    from torch import nn

    height, width, channels = input_shape
    layer = nn.Conv2d(3, 4, 3)
    return nn.Linear(layer(torch.zeros(1, channels, height, width)).numel(), classes)
