"""TensorFlow 2.15 with Horovod in a training process: connects, builds the learner and trains."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import tensorflow as tf

from velodrome.engines.horovod.keras_learner import HorovodKerasLearner, KerasLearner
from velodrome.engines.horovod.session import HorovodTransport
from velodrome.transport.base import Alone
from velodrome.worker import loop
from velodrome.worker.context import Context
from velodrome.worker.transport_learner import warn_of_zoo_model


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    tf.config.threading.set_intra_op_parallelism_threads(context.threads)
    tf.config.threading.set_inter_op_parallelism_threads(context.threads)
    with context.events.phase("connect"), context.waiting():
        transport = Alone() if context.job.strategy == "single" else HorovodTransport(context, hvd)
    _ = context.data  # a phase of its own
    with context.events.phase("build"):
        warn_of_zoo_model(context)
        if isinstance(transport, HorovodTransport):
            learner: KerasLearner = HorovodKerasLearner(context, transport)
        else:
            learner = KerasLearner(context, transport)
    loop.run(context, learner)
