"""What a task decides under TensorFlow: the network that learns it, and where the batches come from."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from velodrome.engines.tensorflow.feed import Feed, IndexFeed, TextFeed
from velodrome.engines.tensorflow.flat import FlatModel
from velodrome.engines.tensorflow.network import Network
from velodrome.engines.tensorflow.text_network import text_network
from velodrome.models.checks import claims_equivalence, equivalence_warnings
from velodrome.tasks.examples import ExampleTask
from velodrome.training.context import Context


def network_of(context: Context) -> FlatModel:
    """The job's network with the weights that its seed decides, checked against the data, or the saved one."""
    side = context.task.side or context.task.name
    make = _NETWORKS.get(side) or import_module(context.task.module("tensorflow")).network
    network: FlatModel = make(context)
    return network


def _example_network(context: Context) -> FlatModel:
    network = Network(context.job, cast(ExampleTask, context.task), context.data, context.saved_model)
    if context.is_chief and context.saved_model is None:
        reasons = network.reasons_against_equivalence() if claims_equivalence(context.job) else ()
        for note in (*network.notes, *equivalence_warnings(context.job.model, reasons)):
            context.events.emit("warning", message=note)
    return network


def _text_network(context: Context) -> FlatModel:
    return text_network(context.job, context.data, context.saved_model)


#: By the sides of tasks that come with Velodrome; the side of another task is a module with `network(context)`.
_NETWORKS = {"arrays": _example_network, "language-model": _text_network}


def feed_of(context: Context, ranks: range) -> Feed:
    """Where the replicas of this process, by rank, get their batches from."""
    return (TextFeed if context.data.kind == "text" else IndexFeed)(context, ranks)
