"""Your own task under TensorFlow: digits by their ink, predicted so that nine of ten guesses are high enough.

velodrome train --dataset digits --model own_keras_task:build --task own_keras_task:Ink --engine tensorflow
velodrome train --dataset digits --model own_keras_task:build --task own_keras_task:Ink --strategy mirrored --workers 2
"""

import keras
import tensorflow as tf


def build(input_shape):
    """One number per image; `input_shape` is height, width, channels."""
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(1),
    ])


class Ink:
    """How much ink an image has, with a loss that punishes low guesses nine times as hard as high ones."""

    #: Metrics and their directions; the first one decides which model is better.
    better = {"off": "less", "enough": "more"}

    def loss(self, model, batch):
        """One value per example. `batch.x` is what the model takes."""
        error = self._ink(batch) - tf.squeeze(model(batch.x), 1)
        return tf.maximum(0.9 * error, -0.1 * error)

    def metrics(self, outputs, batch):
        """Sums over the batch; they are added up over all batches and workers."""
        error = self._ink(batch) - tf.squeeze(outputs, 1)
        return {"high_enough": tf.math.count_nonzero(error <= 0), "distance": tf.reduce_sum(tf.abs(error))}

    def measure(self, counts):
        """Metrics from the sums; `total` is how many examples there were."""
        return {
            "off": counts["distance"] / counts["total"],
            "enough": counts["high_enough"] / counts["total"],
        }

    def _ink(self, batch):
        return tf.reduce_mean(batch.x, axis=[1, 2, 3])
