"""TensorFlow's random number generators that have a state which can be read: those that a model holds.

The states of Keras' own generators are variables of the model. That of `tf.random.uniform` and its like is inside
TensorFlow's kernels and cannot be saved.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from velodrome.models.generators import KINDS, Generator, Generators, of_model


def _of_tensorflow(one: tf.random.Generator) -> Generator:
    return Generator(lambda: np.asarray(one.state), one.state.assign)


def generators_of(model: keras.Model) -> Generators:
    """The generators of any kind that a model or one of its layers holds."""
    return of_model(model, keras.layers.Layer, {**KINDS, tf.random.Generator: _of_tensorflow})
