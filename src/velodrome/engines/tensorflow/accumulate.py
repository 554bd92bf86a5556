"""`--accumulate`: a step in several parts, one after the other, whose gradients are added up before any is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from velodrome.engines.tensorflow.flat import Batch, FlatModel, StepResult


def gradient_in_parts(
    network: FlatModel, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
) -> tuple[Any, StepResult]:
    """What `network.gradient` returns for a batch, computed on as many parts of it as the job asks for."""
    if network.job.accumulate == 1:
        return network.gradient(sources, weights, statistics, batch)
    rows = tf.shape(tf.nest.flatten(batch.inputs)[0], tf.int64)[0]
    parts = tf.minimum(tf.constant(network.job.accumulate, tf.int64), rows)  # none of them is empty
    held = list(statistics)

    def body(part: tf.Tensor, counts: tf.Tensor, total: list[tf.Tensor], state: list[tf.Tensor]) -> tuple[Any, ...]:
        low, high = part * rows // parts, (part + 1) * rows // parts
        here = [value[low:high] for value in state] if network.stateful else state
        inner = tf.nest.map_structure(tf.identity, sources)
        gradient, result = network.gradient(inner, weights, here, _part_of(batch, low, high))
        dense = [tf.convert_to_tensor(piece) for piece in tf.nest.flatten(gradient)]
        after = result.statistics
        if network.stateful:
            after = [
                tf.concat([old[:low], new, old[high:]], 0) for old, new in zip(state, result.statistics, strict=True)
            ]
        added = [one + other for one, other in zip(total, dense, strict=True)]
        return part + 1, counts + result.counts, added, after

    nothing = [tf.zeros_like(source) for source in tf.nest.flatten(sources)]
    start = tf.constant(0, tf.int64), tf.zeros([network.counts_size], tf.float64), nothing, held
    shapes = tf.nest.map_structure(lambda value: value.shape, start)
    if network.stateful:
        shapes = *shapes[:3], [tf.TensorShape([None, *value.shape[1:]]) for value in held]
    _, counts, total, state = tf.while_loop(
        lambda part, *_: part < parts, body, start, shape_invariants=shapes, parallel_iterations=1
    )
    return tf.nest.pack_sequence_as(sources, total), StepResult(counts, list(state))


def _part_of(batch: Batch, low: tf.Tensor, high: tf.Tensor) -> Batch:
    """Some of a batch's examples; losses are divided by the size of the whole."""
    inputs, targets = (
        tf.nest.map_structure(lambda value: value[low:high], values) for values in (batch.inputs, batch.targets)
    )
    if batch.real.shape.rank == 0:  # all examples count, or none does
        real = tf.where(batch.real > 0, tf.cast(high - low, batch.real.dtype), tf.zeros_like(batch.real))
    else:
        real = batch.real[low:high]
    return batch._replace(inputs=inputs, targets=targets, real=real)
