"""Horovod with TensorFlow 2.15 and Keras 2 as its documentation shows it, started by `horovodrun`; a step is a call of
a `tf.function`, with its batch gathered in memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import LEARNING_RATE, Clock, answer, read_task, take_core

task = read_task()
if task.workers > 1 and "HOROVOD_RANK" not in os.environ:
    launch = ["-m", "horovod.runner.launch", "-np", str(task.workers), "--gloo", "--network-interface", "lo"]
    os.execv(sys.executable, [sys.executable, *launch, sys.executable, *sys.argv])
rank = int(os.environ.get("HOROVOD_RANK", "0"))
os.environ["RANK"] = str(rank)
take_core(rank)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras_model import build  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd = None
if task.workers > 1:
    import horovod.tensorflow as hvd

    hvd.init()
tf.keras.utils.set_random_seed(1)
model = build(tf.keras, task.model)
optimizer = tf.keras.optimizers.Adam(LEARNING_RATE)
optimizer.build(model.trainable_variables)
if hvd is not None:
    hvd.broadcast_variables(model.variables, root_rank=0)
with np.load(task.data, allow_pickle=False) as stored:
    images, labels = tf.constant(stored["images"]), tf.constant(stored["labels"].astype(np.int64))


@tf.function
def train() -> tf.Tensor:
    chosen = tf.random.uniform([task.batch], maxval=len(labels), dtype=tf.int64)
    with tf.GradientTape() as tape:
        logits = model(tf.cast(tf.gather(images, chosen), tf.float32) / 255, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(labels, chosen), logits))
    if hvd is not None:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


clock = Clock()
for step in range(task.steps):
    clock.before_step(step)
    float(train())
if rank == 0:
    answer(clock.rate(task))
