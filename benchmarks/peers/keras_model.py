"""The benchmark's networks, layer for layer those of Velodrome's zoo, in Keras 3 or legacy Keras as handed in."""

from __future__ import annotations

import time
from typing import Any


def build(keras: Any, name: str) -> Any:
    layers = keras.layers
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


def timer(keras: Any) -> Any:
    """A callback that times the second epoch; the first, as long, is the warm-up.

    Only epochs are watched: a callback on every batch would make `fit` slower than it is, and is not allowed under a
    parameter server.
    """

    class Timer(keras.callbacks.Callback):  # type: ignore[misc]
        seconds = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self._began

    return Timer()
