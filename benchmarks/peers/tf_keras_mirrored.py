"""`tf_keras` `fit` under MultiWorkerMirroredStrategy, as TensorFlow's multi-worker tutorial does it."""

from __future__ import annotations

import json
import os

from task import LEARNING_RATE, WARMUP_STEPS, answer, read_data, read_task, reporter, run_cluster, take_core

task = read_task()
if "TF_CONFIG" not in os.environ:
    run_cluster({"worker": task.workers})
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
take_core(rank)

import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
from keras_model import compiled, timer  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
#: Steps of an epoch where epochs are reported.
STEPS_PER_REPORT = 3
strategy = tf.distribute.MultiWorkerMirroredStrategy()

images, labels = read_data(task)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(len(labels)).repeat().batch(task.batch * task.workers).prefetch(tf.data.AUTOTUNE)
    .with_options(options)
)  # fmt: skip
with strategy.scope():
    model = compiled(tf_keras, task.model, LEARNING_RATE)
steps, epochs = task.steps - WARMUP_STEPS, 2
if "BENCHMARK_REPORTS" in os.environ:  # epochs are all that it reports
    steps, epochs = STEPS_PER_REPORT, task.steps // STEPS_PER_REPORT
clock = timer(tf_keras, reporter(rank), steps)
model.fit(dataset, epochs=epochs, steps_per_epoch=steps, callbacks=[clock], verbose=0)
if rank == 0:
    answer(steps * task.examples / clock.seconds)
