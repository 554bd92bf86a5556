"""Keras 3 `fit` in one process."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras_model import compiled, timer
from task import LEARNING_RATE, WARMUP_STEPS, answer, read_data, read_task, take_core

task = read_task()
take_core(0)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

images, labels = read_data(task)
dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(len(labels)).repeat().batch(task.batch).prefetch(tf.data.AUTOTUNE)
)  # fmt: skip
model = compiled(keras, task.model, LEARNING_RATE)
clock = timer(keras)
steps = task.steps - WARMUP_STEPS
model.fit(dataset, epochs=2, steps_per_epoch=steps, callbacks=[clock], verbose=0)
answer(steps * task.examples / clock.seconds)
