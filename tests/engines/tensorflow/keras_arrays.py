"""Models and tasks on arrays, as a user writes them for Keras."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers


def small(input_shape, outputs, activation=None):
    """Flattens whatever comes."""
    return keras.Sequential([
        keras.Input(input_shape), layers.Flatten(), layers.Dense(12, activation="tanh"),
        layers.Dense(outputs, activation=activation),
    ])


def regularized(input_shape, outputs):
    """A penalty on weights and one on activations, which differs from replica to replica."""
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(6, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    return keras.Model(inputs, layers.Dense(outputs)(hidden))


class Both(keras.Model):
    """Words by their numbers, and measurements: a subclass that knows its shapes only when it is called."""

    def __init__(self, outputs):
        super().__init__()
        self.words, self.rest = layers.Embedding(20, 4), layers.Dense(outputs)

    def call(self, inputs):
        return self.rest(tf.concat([tf.reduce_mean(self.words(inputs["words"]), 1), inputs["numbers"]], 1))


def both(input_shape, outputs):
    return Both(outputs if isinstance(outputs, int) else sum(outputs.values()))


def functional(input_shape, outputs):
    """A functional model that takes its inputs by name."""
    words = keras.Input(input_shape["words"], name="words", dtype="int32")
    numbers = keras.Input(input_shape["numbers"], name="numbers")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(words))
    joined = layers.Concatenate()([mean, numbers])
    return keras.Model({"words": words, "numbers": numbers}, layers.Dense(sum(outputs.values()))(joined))


def recurrent(input_shape, outputs):
    """Sequences of whole numbers."""
    return keras.Sequential([
        keras.Input(input_shape, dtype="int32"), layers.Embedding(20, 3), layers.GRU(4), layers.Dense(outputs),
    ])


def too_wide(input_shape):
    """Returns what does not fit a target of one number."""
    return keras.Sequential([keras.Input(input_shape), layers.Dense(input_shape[0])])


class Quantile:
    """One value per example, and a penalty that every example carries."""

    better = {"coverage": "more"}  # noqa: RUF012 (as users write it)

    def loss(self, model, batch):
        error = batch.targets["y"] - tf.reshape(model(batch.inputs["x"]), [-1])
        penalty = 0.01 * tf.add_n([tf.reduce_sum(tf.square(weight)) for weight in model.trainable_variables])
        return tf.maximum(0.9 * error, -0.1 * error) + penalty

    def metrics(self, outputs, batch):
        covered = tf.reduce_sum(tf.cast(batch.y <= tf.reshape(outputs, [-1]), tf.int32))
        return {"covered": covered, "width": tf.reduce_sum(tf.abs(outputs))}

    def measure(self, counts):
        return {"coverage": counts["covered"] / counts["total"], "width": counts["width"] / counts["total"]}


class Masked:
    """A sum over those numbers of a row that are there, and how many they are; the model is called twice."""

    def loss(self, model, batch):
        there = tf.cast(batch.y[:, :3] > -0.5, batch.y.dtype)
        predicted = (model(batch.x) + model(2 * batch.x))[:, :3]
        return tf.reduce_sum(tf.square(predicted - batch.y[:, :3]) * there), tf.reduce_sum(there)


class TwoTargets:
    """Several inputs and targets by name."""

    better = {"hits": "more"}  # noqa: RUF012

    def loss(self, model, batch):
        outputs = model(batch.inputs)
        errors = tf.square(outputs[:, 0] - batch.targets["price"])
        kind = batch.targets["kind"]
        return errors + tf.nn.sparse_softmax_cross_entropy_with_logits(labels=kind, logits=outputs[:, :2])

    def metrics(self, outputs, batch):
        return {"hits": tf.reduce_sum(tf.cast(tf.argmax(outputs[:, :2], 1) == batch.targets["kind"], tf.int32))}


class Scalar:
    def loss(self, model, batch):
        return tf.reduce_mean(model(batch.x))


class Stopped:
    def loss(self, model, batch):
        return tf.reshape(tf.stop_gradient(model(batch.x)), [-1])


class WrongShapes:
    def loss(self, model, batch):
        return tf.reduce_sum(model(batch.x) @ batch.x, 1)


class Long:
    def loss(self, model, batch):
        return tf.reshape(model(batch.x), [-1]) / len(batch)


class NanMetric(Quantile):
    def measure(self, counts):
        return {"coverage": float("nan")}


class NoLoss:
    pass


class OfColumns:
    """One value per column, which nobody may take for one per example."""

    def loss(self, model, batch):
        return tf.reduce_mean(tf.square(batch.x - model(batch.x)), axis=0)


class WrongInside(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3)

    def call(self, x):
        hidden = self.first(x)
        return tf.matmul(hidden, hidden)


def wrong_inside():
    return WrongInside()
