"""TensorFlow's own way of every strategy, written by hand: Keras variables and optimizer, data in memory as bytes,
several steps in a call of the graph. `allreduce`, which is Velodrome's own, is compared with MultiWorkerMirrored."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import LEARNING_RATE, WARMUP_STEPS, Clock, answer, read_task, run_cluster, take_core

task = read_task()
several_processes = task.strategy in ("multi-worker-mirrored", "allreduce")
served = task.strategy == "parameter-server"
if (several_processes or served) and "TF_CONFIG" not in os.environ:
    run_cluster({"worker": task.workers, **({"ps": 1, "chief": 1} if served else {})})
me = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}'))["task"]
if me["type"] == "worker" and task.strategy not in ("mirrored", "central-storage"):
    take_core(me["index"])
if me["index"] or (served and me["type"] != "chief"):
    os.environ.pop("BENCHMARK_REPORTS", None)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras_model import build  # noqa: E402

STEPS_PER_CALL = 10
devices = task.workers if task.strategy in ("mirrored", "central-storage") else 1


def make_strategy() -> Any:
    if served:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if me["type"] != "chief":
            config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
            config.inter_op_parallelism_threads = task.workers + 1
            tf.distribute.Server(
                resolver.cluster_spec(), job_name=me["type"], task_index=me["index"], protocol="grpc", config=config
            ).join()
        return tf.distribute.ParameterServerStrategy(resolver)
    tf.config.threading.set_intra_op_parallelism_threads(devices)
    tf.config.threading.set_inter_op_parallelism_threads(devices)
    if several_processes:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if devices == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if task.strategy == "mirrored":
        return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
    return tf.distribute.experimental.CentralStorageStrategy(compute_devices=names, parameter_device=names[0])


strategy = make_strategy()
with np.load(task.data, allow_pickle=False) as stored:
    all_images, all_labels = stored["images"], stored["labels"]
keras.utils.set_random_seed(1)
with strategy.scope():
    model = build(keras, task.model)
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    optimizer.build(model.trainable_variables)


def one_step(images: tf.Tensor, labels: tf.Tensor, whole: int) -> None:
    chosen = tf.random.uniform([task.batch], maxval=len(all_labels), dtype=tf.int64)
    with tf.GradientTape() as tape:
        logits = model(tf.cast(tf.gather(images, chosen), tf.float32) / 255, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(labels, chosen), logits)
        loss = tf.reduce_sum(losses) / whole
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


clock = Clock()
assert WARMUP_STEPS % STEPS_PER_CALL == task.steps % STEPS_PER_CALL == 0, "whole calls are timed"
if served:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def dataset() -> tf.data.Dataset:
        """Each worker's own batches, as TensorFlow's guide makes them."""
        held = tf.data.Dataset.from_tensor_slices((all_images, all_labels))
        return held.shuffle(len(all_labels)).repeat().batch(task.batch).prefetch(tf.data.AUTOTUNE)

    @tf.function
    def scheduled(batches: Any) -> None:
        def replica(images: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                logits = model(tf.cast(images, tf.float32) / 255, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        strategy.run(replica, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    for step in range(0, task.steps, STEPS_PER_CALL):
        clock.before_step(step)
        for _ in range(STEPS_PER_CALL * task.workers):  # a step is one worker's
            coordinator.schedule(scheduled, args=(batches,))
        coordinator.join()
else:
    images, labels = tf.constant(all_images), tf.constant(all_labels)

    @tf.function
    def train() -> None:
        for _ in tf.range(STEPS_PER_CALL):
            strategy.run(one_step, args=(images, labels, task.batch * task.workers))

    for step in range(0, task.steps, STEPS_PER_CALL):
        clock.before_step(step)
        train()
np.asarray(model.trainable_variables[-1])
if me["index"] == 0:
    answer(clock.rate(task))
os._exit(0)  # coordinators' threads would wait for workers that are about to be ended
