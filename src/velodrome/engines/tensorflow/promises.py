"""Why several workers would not end with the weights of one: found in the graph of a Keras model, which is not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from velodrome.models import generators
from velodrome.models.equivalence import BATCH_NORMALISATION, RANDOM_NUMBERS, STATISTICS


def reasons_of(model: keras.Model, batch: Any) -> list[str]:
    """Why workers and one process differ; `batch` is the specification of what the model takes."""
    changed: list[keras.Variable] = []

    def call(inputs: Any) -> None:
        with keras.StatelessScope() as scope:
            model(inputs, training=True)
        changed.extend(each for each in model.non_trainable_variables if scope.get_current_value(each) is not None)

    try:
        with generators.preserved():
            graph = tf.function(call, autograph=False).get_concrete_function(batch).graph
    except Exception:  # a model that cannot be traced on any batch is refused elsewhere, or takes one size only
        return []
    norms = {id(each) for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)
             for each in layer.non_trainable_variables}
    floating = [each for each in changed if tf.as_dtype(each.dtype).is_floating]
    found = {
        BATCH_NORMALISATION: any(id(each) in norms for each in floating),
        RANDOM_NUMBERS: any("Random" in operation for operation in _operations(graph)),
        STATISTICS: any(id(each) not in norms for each in floating),
    }
    return [reason for reason, holds in found.items() if holds]


def _operations(graph: Any) -> Iterator[str]:
    """The kinds of operations in a graph and in the functions that it calls."""
    definition = graph.as_graph_def()
    yield from (node.op for node in definition.node)
    yield from (node.op for function in definition.library.function for node in function.node_def)
