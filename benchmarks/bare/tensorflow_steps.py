"""Plain TensorFlow that trains until it is ended, with TensorFlow's own threads and settings, and prints its
progress."""

from __future__ import annotations

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
MODELS = {
    "dense-300-100": lambda: [
        layers.Flatten(), layers.Dense(300, activation="relu"), layers.Dense(100, activation="relu"), layers.Dense(10),
    ],
    "lenet5": lambda: [
        layers.Conv2D(20, 5, activation="tanh"), layers.MaxPooling2D(), layers.Conv2D(50, 5, activation="tanh"),
        layers.MaxPooling2D(), layers.Flatten(), layers.Dense(500, activation="tanh"), layers.Dense(10),
    ],
}  # fmt: skip

with np.load(sys.argv[1], allow_pickle=False) as stored:
    images, labels = tf.constant(stored["x_train"][..., None]), tf.constant(stored["y_train"])
model, batch = keras.Sequential([layers.InputLayer((28, 28, 1)), *MODELS[sys.argv[2]]()]), int(sys.argv[3])
optimizer = keras.optimizers.Adam(0.001)
optimizer.build(model.trainable_variables)


@tf.function
def step() -> tf.Tensor:
    chosen = tf.random.uniform([batch], maxval=len(labels), dtype=tf.int64)
    with tf.GradientTape() as tape:
        logits = model(tf.cast(tf.gather(images, chosen), tf.float32) / 255, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(labels, chosen), logits)
        loss = tf.reduce_mean(losses)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


began = printed = time.perf_counter()
examples = 0
while True:
    float(step())
    examples += batch
    if (now := time.perf_counter()) - printed > 0.1:
        print(json.dumps({"time": time.time(), "examples": examples, "seconds": now - began}), flush=True)
        printed = now
