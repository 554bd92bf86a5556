"""A task of your own for TensorFlow: its loss and its metrics. This one predicts how bright an image is. Train it:

COMMAND
"""

import keras
import tensorflow as tf
from keras import layers


class Task:
    """Made once in every training process, without arguments."""

    #: Which of the metrics should be `more` or `less`; the first one decides which run is better.
    better = {"within": "more", "error": "less"}

    def loss(self, model, batch):
        """Return one value per example, or a sum and the count that it is a sum over; never a mean.

        `batch.x` is what the model takes, `batch.y` the target; `batch.inputs` and `batch.targets` have all by name.
        """
        return tf.square(model(batch.x)[:, 0] - self.target(batch))

    def metrics(self, outputs, batch):
        """Optional: sums over the batch, by name. They are added up over all batches and workers."""
        error = tf.abs(outputs[:, 0] - self.target(batch))
        return {"error": tf.reduce_sum(error), "within": tf.reduce_sum(tf.cast(error < 0.05, error.dtype))}

    def measure(self, counts):
        """Optional: the metrics, from the sums over all examples. Without it, each sum is divided by `total`."""
        return {"error": counts["error"] / counts["total"], "within": counts["within"] / counts["total"]}

    def target(self, batch):
        """What is to be predicted. Use `batch.y` instead, if your data has it."""
        return tf.reduce_mean(batch.x, axis=[1, 2, 3])


def build(input_shape):
    """The model; `input_shape` is height, width, channels. More arguments of your own: --model-arg."""
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(1),
    ])
