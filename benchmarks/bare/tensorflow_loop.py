"""Plain TensorFlow in one process, written by hand: what Velodrome's `single` is measured against for the larger
networks. Data is in memory as bytes, and a call of the graph makes several steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from task import CONTEXT, LEARNING_RATE, WARMUP_STEPS, Clock, answer, read_task, take_core

task = read_task()
take_core(0)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras_model import build  # noqa: E402

STEPS_PER_CALL = 10

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(1)
model = build(keras, task.model)
optimizer = keras.optimizers.Adam(LEARNING_RATE)
optimizer.build(model.trainable_variables)
with np.load(task.data, allow_pickle=False) as stored:
    if task.reads_text:
        words = stored["words"].astype(np.int32)
        length = len(words) // task.batch
        rows = tf.constant(words[: length * task.batch].reshape(task.batch, length))
        steps_of_epoch = (length - 1) // CONTEXT
    else:
        images, labels = tf.constant(stored["images"]), tf.constant(stored["labels"])
        steps_of_epoch = len(labels) // task.batch
order = tf.Variable(tf.random.shuffle(tf.range(1 if task.reads_text else len(labels))))


def batch(place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if task.reads_text:
        return tuple(tf.slice(rows, [0, place * CONTEXT + after], [task.batch, CONTEXT]) for after in (0, 1))
    chosen = tf.slice(order, [place * task.batch], [task.batch])
    return tf.cast(tf.gather(images, chosen), tf.float32) / 255, tf.gather(labels, chosen)


@tf.function
def train(first: tf.Tensor) -> None:
    for number in tf.range(STEPS_PER_CALL):
        inputs, targets = batch((first + number) % steps_of_epoch)
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)


assert WARMUP_STEPS % STEPS_PER_CALL == task.steps % STEPS_PER_CALL == 0, "whole calls are timed"
clock = Clock()
for step in range(0, task.steps, STEPS_PER_CALL):
    clock.before_step(step)
    train(tf.constant(step))
np.asarray(model.trainable_variables[-1])
answer(clock.rate(task))
