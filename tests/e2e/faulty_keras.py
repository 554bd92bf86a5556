"""A user's Keras model that goes wrong as asked: in which rank, at which training step, in which way."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

RANK = int(os.environ.get("VELODROME_RANK", "0"))


class Trap(keras.layers.Layer):
    """Passes its input on, until the step comes."""

    def __init__(self, fault: str, at: int, pause: float, **more: Any) -> None:
        super().__init__(**more)
        self.fault, self.at, self.pause, self.steps = fault, at, pause, 0

    def spring(self, values: np.ndarray) -> np.ndarray:
        self.steps += 1
        time.sleep(self.pause)
        if self.steps == self.at and self.fault == "raise":
            raise ValueError("the user's own mistake")
        if self.steps == self.at and self.fault == "sleep":
            time.sleep(3600)
        return values * np.float32(math.nan) if self.steps == self.at and self.fault == "nan" else values

    @tf.custom_gradient
    def pass_on(self, values: tf.Tensor) -> Any:
        out = tf.numpy_function(self.spring, [values], values.dtype)
        out.set_shape(values.shape)
        return out, lambda upstream: upstream

    def call(self, values: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.pass_on(values) if training else values

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "fault": "", "at": 0, "pause": 0.0}


def build(
    input_shape: tuple[int, int, int], classes: int, fault: str = "", rank: int = 1, at: int = 3, pause: float = 0.0
) -> keras.Model:
    if at == 0 and fault == "raise" and rank in (RANK, -1):
        raise ValueError("the user's own mistake")
    outputs = classes + 1 if fault == "outputs" else classes
    layers = [keras.Input(input_shape)]
    if fault == "shape":
        layers += [keras.layers.Conv2D(4, 5), keras.layers.Conv2D(4, 5)]
    trap = Trap(fault if rank in (RANK, -1) else "", at, pause)
    return keras.Sequential([*layers, keras.layers.Flatten(), trap, keras.layers.Dense(outputs)])
