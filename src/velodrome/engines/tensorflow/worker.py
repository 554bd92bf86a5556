"""TensorFlow's training process: sets the framework up, builds the learner of the job's strategy, runs the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf

from velodrome.catalog.engines.tensorflow import cluster_of, task_of
from velodrome.catalog.world import World
from velodrome.engines.tensorflow.cluster import (
    PeerMonitor,
    cluster_resolver,
    limited,
    rendezvous,
    translate_errors,
    wait_for,
    warn_if_exposed,
)
from velodrome.engines.tensorflow.optimizers import is_by_keras, steps_of_epoch
from velodrome.engines.tensorflow.replicas import Replicas
from velodrome.engines.tensorflow.stock import KerasWeights
from velodrome.engines.tensorflow.tasks.base import task_of_job
from velodrome.engines.tensorflow.weights import ReplicaWeights
from velodrome.worker import loop
from velodrome.worker.context import Context
from velodrome.worker.learner import Learner

_IN_PROCESS = ("mirrored", "central-storage")


def train(context: Context) -> None:
    """Train a job's part in this process, to its end."""
    tf.get_logger().setLevel("ERROR")
    _set_devices(context)
    strategy = context.job.strategy
    if strategy == "parameter-server":
        with translate_errors(context.world.me.port):
            if context.role == "chief":
                _lead(context)
            else:
                _serve(context)
    elif strategy == "allreduce":
        from velodrome.engines.tensorflow import allreduce

        allreduce.train(context)
    elif strategy == "multi-worker-mirrored":
        with translate_errors(context.world.me.port):
            loop.run(context, _multi_worker(context))
    else:
        loop.run(context, _in_this_process(context))


def _set_devices(context: Context) -> None:
    """Give a process its threads and one GPU; replicas inside one process share its threads fairly."""
    replicas = context.job.workers if context.job.strategy in _IN_PROCESS else 1
    tf.config.threading.set_intra_op_parallelism_threads(max(1, context.threads // replicas))
    tf.config.threading.set_inter_op_parallelism_threads(max(context.threads, replicas))
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and context.job.strategy not in _IN_PROCESS:
        tf.config.set_visible_devices(gpu_of(context.world, gpus), "GPU")


def gpu_of(world: World, gpus: Sequence[Any]) -> list[Any]:
    """The GPU of this process: that of its local rank, if its host has one for each of its workers.

    Otherwise all workers of the host compute on CPUs: two that share a GPU fight for its memory, and a job that mixes
    CPUs and GPUs runs at the speed of the slowest. Servers and the chief of a parameter-server job never need one.
    """
    if world.me.role != "worker" or world.local_size > len(gpus):
        return []
    return [gpus[world.me.local_rank]]


def _in_this_process(context: Context) -> Learner:
    strategy = context.job.strategy
    with context.events.phase("connect"):
        devices = devices_for(context.job.workers) if strategy in _IN_PROCESS else []
    _ = context.data  # a phase of its own
    with context.events.phase("build"):
        if strategy == "mirrored":
            return _replicas(context, tf.distribute.MirroredStrategy(devices), devices)
        if strategy == "central-storage":
            central = tf.distribute.experimental.CentralStorageStrategy(
                compute_devices=devices, parameter_device="/cpu:0"
            )
            return _replicas(context, central, devices, central=True)
        return _replicas(context, tf.distribute.get_strategy(), [None])


def _replicas(context: Context, strategy: Any, devices: Sequence[str | None], *, central: bool = False) -> Learner:
    """The learner of a synchronous strategy, in the form that the job asks for."""
    task, steps = task_of_job(context), steps_of_epoch(context)
    if not is_by_keras(context.job):
        network = task.network(context)
        flat = ReplicaWeights(context.job, network, strategy, steps, central=central)
        return Replicas(context, network, flat, strategy, devices)
    with strategy.scope():
        network = task.network(context)
    return Replicas(context, network, KerasWeights(context.job, network, strategy, steps), strategy, devices)


def devices_for(workers: int) -> list[str]:
    """GPUs if there are enough of them, else logical CPU devices."""
    if len(tf.config.list_physical_devices("GPU")) >= workers:
        return [f"/gpu:{index}" for index in range(workers)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * workers)
    return [f"/cpu:{index}" for index in range(workers)]


def _multi_worker(context: Context) -> Learner:
    limit, world = context.job.start_timeout, context.world
    with context.events.phase("connect"), context.waiting():
        rendezvous(world.me, [peer for peer in world.peers if peer != world.me], limit)
        with limited(limit):
            strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver(world))
        warn_if_exposed(context)
    _ = context.data  # a phase of its own
    with context.events.phase("build"):
        return _replicas(context, strategy, strategy.extended.worker_devices)


def _lead(context: Context) -> None:
    """The chief: wait for all other processes, then run the loop."""
    from velodrome.engines.tensorflow.parameter_server import make_strategy

    limit = context.job.start_timeout
    others = [peer for peer in context.world.members if peer.role != "chief"]
    _ = context.data  # a phase of its own
    with context.events.phase("connect"), context.waiting():
        wait_for(others, limit)
        with limited(limit):
            strategy = make_strategy(context)
        warn_if_exposed(context)
    with context.events.phase("build"):
        task = task_of_job(context)
        with strategy.scope() if is_by_keras(context.job) else nullcontext():
            network = task.network(context)
        learner = task.dispatcher(context, network, strategy, PeerMonitor(others, context.events))
    loop.run(context, learner)


def _serve(context: Context) -> None:
    """A worker or a server: run what the chief sends until the chief's port closes."""
    if context.role == "worker":
        task_of_job(context).prepare_server_worker(context)
    chief = context.world.of_role("chief")
    with context.events.phase("connect"), context.waiting():
        task, index = task_of(context.world)
        # Fewer threads than workers can block a server: each may wait in a call of its own.
        threads = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=context.threads,
            inter_op_parallelism_threads=max(context.threads, context.job.workers + 1),
        )
        server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster_of(context.world)), job_name=task, task_index=index, protocol="grpc",
            config=threads, start=True,
        )
        wait_for(chief, context.job.start_timeout)
    monitor = PeerMonitor(chief, context.events)
    with context.waiting():
        while not monitor.lost:
            time.sleep(0.2)
    del server
