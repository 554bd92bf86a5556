"""`tf_keras` `fit` under ParameterServerStrategy with one server, as TensorFlow's parameter-server tutorial does it."""

from __future__ import annotations

import json
import os

from task import LEARNING_RATE, WARMUP_STEPS, answer, read_data, read_task, run_cluster, take_core

task = read_task()
if "TF_CONFIG" not in os.environ:
    run_cluster({"worker": task.workers, "ps": 1, "chief": 1})
me = json.loads(os.environ["TF_CONFIG"])["task"]
if me["type"] == "worker":  # the chief and the server take what time the workers leave, on any core
    take_core(me["index"])

import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
from keras_model import compiled, timer  # noqa: E402

#: The tutorial's number of steps that a worker takes for one order of the chief.
STEPS_PER_EXECUTION = 10

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if me["type"] != "chief":
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    config.inter_op_parallelism_threads = task.workers + 1  # with fewer than that, as the tutorial warns, it hangs
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=me["type"], task_index=me["index"], protocol="grpc", config=config
    )
    server.join()

tf.config.threading.set_intra_op_parallelism_threads(1)
partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=1)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
images, labels = read_data(task)


def worker_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.shuffle(len(labels)).repeat().batch(task.batch).prefetch(tf.data.AUTOTUNE)


with strategy.scope():
    model = compiled(tf_keras, task.model, LEARNING_RATE, steps_per_execution=STEPS_PER_EXECUTION)
clock = timer(tf_keras)
# asynchronous: a step is one worker's, so as many examples as elsewhere take so many more steps
steps = (task.steps - WARMUP_STEPS) * task.workers // STEPS_PER_EXECUTION * STEPS_PER_EXECUTION
dataset = tf_keras.utils.experimental.DatasetCreator(worker_input)
model.fit(dataset, epochs=2, steps_per_epoch=steps, callbacks=[clock], verbose=0)
answer(steps * task.examples / task.workers / clock.seconds)
os._exit(0)  # the coordinator's threads would wait for workers that are about to be ended
