"""The least that TensorFlow needs to its first training step: what the start of Velodrome is measured against."""

from __future__ import annotations

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
with np.load(sys.argv[1], allow_pickle=False) as stored:
    images, labels = tf.constant(stored["images"]), tf.constant(stored["labels"])
layers = keras.layers
model = keras.Sequential(
    [
        layers.InputLayer((28, 28, 1)), layers.Flatten(), layers.Dense(300, activation="relu"),
        layers.Dense(100, activation="relu"), layers.Dense(10),
    ]
)  # fmt: skip
optimizer = keras.optimizers.Adam(0.001)
optimizer.build(model.trainable_variables)


@tf.function
def step(chosen: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = model(tf.cast(tf.gather(images, chosen), tf.float32) / 255, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(labels, chosen), logits)
        loss = tf.reduce_mean(losses)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


float(step(tf.random.shuffle(tf.range(len(labels)))[:128]))
print(json.dumps({"first_step_at": time.time()}))
