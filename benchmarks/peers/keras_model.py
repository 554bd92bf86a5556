"""The benchmark's networks, layer for layer those of Velodrome's zoo, in Keras 3 or legacy Keras as handed in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def build(keras: Any, name: str) -> Any:
    layers = keras.layers
    if name == "resnet20":
        return resnet20(keras)
    if name == "gpt-mini":
        return gpt_mini(keras)
    if name == "dense-300-100":
        body = [layers.Flatten(), layers.Dense(300, activation="relu"), layers.Dense(100, activation="relu")]
    else:
        body = [
            layers.Conv2D(20, 5), layers.MaxPooling2D(2), layers.Activation("tanh"),
            layers.Conv2D(50, 5), layers.MaxPooling2D(2), layers.Activation("tanh"),
            layers.Flatten(), layers.Dense(500, activation="tanh"),
        ]  # fmt: skip
    return keras.Sequential([layers.InputLayer((28, 28, 1)), *body, layers.Dense(10)])


def compiled(keras: Any, name: str, learning_rate: float, **more: Any) -> Any:
    model = build(keras, name)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **more,
    )
    return model


def resnet20(keras: Any) -> Any:
    layers = keras.layers

    def convolved(inputs: Any, filters: int, stride: int = 1) -> Any:
        if stride > 1:
            inputs = layers.ZeroPadding2D(1)(inputs)
        padding = "same" if stride == 1 else "valid"
        outputs = layers.Conv2D(filters, 3, stride, padding=padding, use_bias=False)(inputs)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(outputs)

    images = keras.Input((28, 28, 1))
    now, before = layers.ReLU()(convolved(images, 16)), 16
    for filters in (16, 16, 16, 32, 32, 32, 64, 64, 64):
        hidden = convolved(layers.ReLU()(convolved(now, filters, 1 if filters == before else 2)), filters)
        if filters > before:
            # Every second pixel, and zeros for the new channels: a "convolution" along the channels' axis.
            now = layers.MaxPooling2D(1, strides=2)(now)
            now = layers.Permute((1, 3, 2))(layers.ZeroPadding2D(((0, 0), (0, filters - before)))(
                layers.Permute((1, 3, 2))(now)
            ))
        now, before = layers.ReLU()(layers.Add()([hidden, now])), filters
    return keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(now)))


def gpt_mini(keras: Any) -> Any:
    """With Keras' own attention; the embedding is tied by a model that calls its weights twice."""
    import tensorflow as tf
    from task import CONTEXT, VOCABULARY

    layers = keras.layers

    class Gpt(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions = layers.Embedding(VOCABULARY, 128), layers.Embedding(CONTEXT, 128)
            self.blocks = [
                [
                    layers.LayerNormalization(epsilon=1e-5), layers.MultiHeadAttention(4, 32),
                    layers.LayerNormalization(epsilon=1e-5), layers.Dense(512, activation="gelu"), layers.Dense(128),
                ]
                for _ in range(4)
            ]
            self.norm = layers.LayerNormalization(epsilon=1e-5)

        def call(self, words: Any) -> Any:
            stream = self.words(words) + self.positions(tf.range(CONTEXT))
            for before, attention, between, expand, contract in self.blocks:
                now = before(stream)
                stream = stream + attention(now, now, use_causal_mask=True)
                stream = stream + contract(expand(between(stream)))
            return tf.matmul(self.norm(stream), tf.convert_to_tensor(self.words.embeddings), transpose_b=True)

    model = Gpt()
    model(tf.zeros((1, CONTEXT), tf.int64))
    return model


def timer(keras: Any, report: Callable[[int], None] | None = None, steps: int = 0) -> Any:
    """A callback that times the second epoch; the first, as long, is the warm-up. It reports the steps of every epoch.

    Only epochs are watched: a callback on every batch would make `fit` slower than it is, and is not allowed under a
    parameter server.
    """

    class Timer(keras.callbacks.Callback):  # type: ignore[misc]
        seconds = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self._began
            if report:
                report((epoch + 1) * steps)

    return Timer()
