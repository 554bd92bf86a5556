"""TensorFlow's training process: sets the framework up, builds the learner of the job's strategy, runs the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf

from velodrome.catalog.world import World, cluster_of, task_of
from velodrome.engines.tensorflow.networks import network_of
from velodrome.engines.tensorflow.stock import KerasWeights
from velodrome.engines.tensorflow.strategies import worker_data
from velodrome.engines.tensorflow.strategies.allreduce import AllReduce
from velodrome.engines.tensorflow.strategies.cluster import (
    PeerMonitor,
    cluster_resolver,
    limited,
    rendezvous,
    translate_errors,
    wait_for,
    warn_if_exposed,
)
from velodrome.engines.tensorflow.strategies.dispatchers import IndexDispatcher, TextDispatcher
from velodrome.engines.tensorflow.strategies.parameter_server import ParameterServer, make_strategy
from velodrome.engines.tensorflow.strategies.replicas import Replicas
from velodrome.engines.tensorflow.weights import ReplicaWeights, is_by_keras, steps_of_epoch
from velodrome.training import loop
from velodrome.training.context import Context
from velodrome.training.learner import connect_mpi

_IN_PROCESS = ("mirrored", "central-storage")
#: A strategy of `tf.distribute`, and the devices of its replicas in this process.
Devices = tuple[Any, Sequence[str | None]]


def train(context: Context) -> None:
    """Train a job's part in this process, to its end."""
    tf.get_logger().setLevel("ERROR")
    _set_devices(context)
    if context.job.strategy == "parameter-server":
        with translate_errors(context.world.me.port):
            (_lead if context.role == "chief" else _serve)(context)
    elif context.job.strategy == "allreduce":
        loop.train(
            context, partial(connect_mpi, context),
            lambda transport: AllReduce(context, network_of(context), transport),
        )
    elif context.job.strategy == "multi-worker-mirrored":
        with translate_errors(context.world.me.port):
            loop.train(context, partial(_join_workers, context), partial(_replicas, context))
    else:
        loop.train(context, partial(_in_this_process, context), partial(_replicas, context))


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


def _in_this_process(context: Context) -> Devices:
    """The strategy of a job of one process."""
    if context.job.strategy not in _IN_PROCESS:
        return tf.distribute.get_strategy(), [None]
    devices = devices_for(context.job.workers)
    if context.job.strategy == "mirrored":
        return tf.distribute.MirroredStrategy(devices), devices
    central = tf.distribute.experimental.CentralStorageStrategy
    return central(compute_devices=devices, parameter_device="/cpu:0"), devices


def devices_for(workers: int) -> list[str]:
    """GPUs if there are enough of them, else logical CPU devices."""
    if len(tf.config.list_physical_devices("GPU")) >= workers:
        return [f"/gpu:{index}" for index in range(workers)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * workers)
    return [f"/cpu:{index}" for index in range(workers)]


def _join_workers(context: Context) -> Devices:
    """Join the other workers; the strategy that sums over all of them."""
    limit, world = context.job.start_timeout, context.world
    rendezvous(world.me, [peer for peer in world.peers if peer != world.me], limit)
    with limited(limit):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver(world))
    warn_if_exposed(context)
    return strategy, strategy.extended.worker_devices


def _replicas(context: Context, devices: Devices) -> Replicas:
    """The learner of a synchronous strategy, in the form that the job asks for."""
    strategy, names = devices
    job, by_keras, steps = context.job, is_by_keras(context.job), steps_of_epoch(context)
    with strategy.scope() if by_keras else nullcontext():
        network = network_of(context)
    weights: KerasWeights | ReplicaWeights
    if by_keras:
        weights = KerasWeights(job, network, strategy, steps)
    else:
        weights = ReplicaWeights(job, network, strategy, steps, central=job.strategy == "central-storage")
    return Replicas(context, network, weights, strategy, names)


def _lead(context: Context) -> None:
    """The chief: wait for all other processes, then run the loop."""
    limit = context.job.start_timeout
    others = [peer for peer in context.world.members if peer.role != "chief"]

    def connect() -> Any:
        wait_for(others, limit)
        with limited(limit):
            strategy = make_strategy(context)
        warn_if_exposed(context)
        return strategy

    def build(strategy: Any) -> ParameterServer:
        with strategy.scope() if is_by_keras(context.job) else nullcontext():
            network: Any = network_of(context)
        dispatcher = TextDispatcher if context.data.kind == "text" else IndexDispatcher
        return dispatcher(context, network, strategy, PeerMonitor(others, context.events))

    _ = context.data  # before it waits: the others load theirs first, too
    loop.train(context, connect, build)


def _serve(context: Context) -> None:
    """A worker or a server: run what the chief sends until the chief's port closes."""
    if context.role == "worker" and context.task.name != "language-model" and worker_data.reads_itself(context):
        worker_data.publish(context.data)
        vars(context).pop("data")  # closures read what was published
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
