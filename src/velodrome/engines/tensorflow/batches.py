"""The examples of one replica as tensors: which ones each step takes, and how a graph gathers them.

A step without examples holds one example that counts nothing, because TensorFlow's convolution gradient aborts the
process on an empty batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from velodrome.engines.tensorflow.examples import Examples, gather
from velodrome.engines.tensorflow.flat import Batch
from velodrome.tasks.base import Task
from velodrome.tasks.schedule import Partition, evaluation_indices
from velodrome.tasks.supervised import Regression

EVALUATION_BATCH = 500


#: Tensors by name that are the same for all examples of a part.
Constants = dict[str, tf.Tensor]


def constants_of(task: Task, data: Any, part: str) -> Constants:
    """What the counts of a part need to know of it as a whole: of regression, the mean of its targets."""
    return {"centre": tf.constant(task.centre(data, part), tf.float64)} if isinstance(task, Regression) else {}


class StepIndex(NamedTuple):
    """Which examples each step takes: step `s` takes ``indices[offsets[s]:offsets[s + 1]]``, of which `real[s]` count
    (all, or none)."""

    indices: tf.Tensor
    offsets: tf.Tensor
    real: tf.Tensor
    batch: tf.Tensor


class ReplicaBatches(NamedTuple):
    """The batches of one replica for many steps: their index, the examples that it refers to, and what the counts of
    the part need to know beside them."""

    steps: StepIndex
    examples: Examples
    constants: Constants


#: Tensor specifications of an index.
STEPS = StepIndex(*(tf.TensorSpec([None], tf.int64) for _ in StepIndex._fields))


def step_index(partition: Partition) -> StepIndex:
    """The index of a partition, with its empty steps filled."""
    real = np.diff(partition.offsets)
    indices, offsets = partition.indices, partition.offsets
    if not real.all():
        indices = np.concatenate([partition.step(step) if real[step] else [0] for step in range(partition.steps)])
        offsets = np.concatenate([[0], np.cumsum(np.maximum(real, 1))])
    as_tensor = [tf.constant(values, tf.int64) for values in (indices, offsets, real, partition.batch)]
    return StepIndex(*as_tensor)


def evaluation_partition(examples: int, rank: int, workers: int) -> Partition:
    """The examples of a whole set that a replica evaluates, in steps of a fixed size and as many as the others have."""
    mine = evaluation_indices(examples, rank, workers)
    largest = -(-examples // workers)
    steps = -(-largest // EVALUATION_BATCH)
    offsets = np.minimum(np.arange(steps + 1, dtype=np.int64) * EVALUATION_BATCH, len(mine))
    return Partition(mine, offsets, np.diff(offsets))


def gather_batch(batches: ReplicaBatches, step: tf.Tensor) -> Batch:
    """Inputs and targets of a step."""
    index = batches.steps
    mine = gather(batches.examples, index.indices[index.offsets[step] : index.offsets[step + 1]])
    return Batch(mine.inputs, mine.targets, index.real[step], index.batch[step], batches.constants)
