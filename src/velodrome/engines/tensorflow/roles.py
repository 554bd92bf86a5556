"""The processes of a parameter-server job: the chief runs the loop, workers and servers serve until it is gone."""

from __future__ import annotations

import json
import os
import time

import tensorflow as tf

from velodrome.engines.tensorflow import nearby
from velodrome.engines.tensorflow.cluster import Watch, limited, peers, wait_for
from velodrome.engines.tensorflow.hand_images import HandsImages
from velodrome.engines.tensorflow.hand_text import HandsText
from velodrome.engines.tensorflow.language import LanguageNetwork
from velodrome.engines.tensorflow.network import load_data, network_of
from velodrome.engines.tensorflow.parameter_server import ParameterServer, make_strategy
from velodrome.worker import loop
from velodrome.worker.context import Context


def train(context: Context) -> None:
    if context.role == "chief":
        lead(context)
    else:
        serve(context)


def lead(context: Context) -> None:
    """The chief: wait for everybody, then run the loop."""
    limit = context.job.start_timeout
    others = [peer for peer in peers() if peer.role != "chief"]
    load_data(context)  # workers do so too before they listen, and from one cache
    with context.events.phase("connect"), context.waiting():
        wait_for(others, limit)
        with limited(limit):
            strategy = make_strategy(context.job.servers)
    with context.events.phase("build"):
        network, watch = network_of(context), Watch(others, context.events)
        learner: ParameterServer = (
            HandsText(context, network, strategy, watch) if isinstance(network, LanguageNetwork)
            else HandsImages(context, network, strategy, watch)
        )
    loop.run(context, learner)


def serve(context: Context) -> None:
    """A worker or a server: does what it is told until the chief's port closes."""
    if context.role == "worker" and not context.is_text:
        nearby.offer(context.data)
        vars(context).pop("data")  # closures read what was offered
    chief = [peer for peer in peers() if peer.role == "chief"]
    with context.events.phase("connect"), context.waiting():
        settings = json.loads(os.environ["TF_CONFIG"])
        # Fewer threads than workers can block a server: each may wait in a call of its own.
        threads = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=context.threads,
            inter_op_parallelism_threads=max(context.threads, context.job.workers + 1),
        )
        server = tf.distribute.Server(
            tf.train.ClusterSpec(settings["cluster"]), job_name=settings["task"]["type"],
            task_index=settings["task"]["index"], protocol="grpc", config=threads, start=True,
        )
        wait_for(chief, context.job.start_timeout)
    watch = Watch(chief, context.events)
    with context.waiting():
        while not watch.lost:
            time.sleep(0.2)
    del server
