"""The processes of a parameter-server job: the chief runs the loop, workers and servers serve until it ends."""

from __future__ import annotations

import time
from contextlib import nullcontext

import tensorflow as tf

from velodrome.catalog.engines.tensorflow import cluster_of, task_of
from velodrome.engines.tensorflow.cluster import PeerMonitor, limited, wait_for, warn_if_exposed
from velodrome.engines.tensorflow.optimizers import is_by_keras
from velodrome.engines.tensorflow.parameter_server import make_strategy
from velodrome.engines.tensorflow.tasks.base import task_of_job
from velodrome.worker import loop
from velodrome.worker.context import Context


def train(context: Context) -> None:
    if context.role == "chief":
        lead(context)
    else:
        serve(context)


def lead(context: Context) -> None:
    """The chief: wait for all other processes, then run the loop."""
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


def serve(context: Context) -> None:
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
