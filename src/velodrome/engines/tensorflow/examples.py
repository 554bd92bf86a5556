"""The examples of a part, whatever the task feeds: inputs and targets, each an array or several by name.

The same structure holds arrays in the process that loaded them, and tensors in the graphs that gather batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from velodrome.data.gather import Gather
from velodrome.data.splits import Part
from velodrome.tasks.schedule import Indices


class Examples(NamedTuple):
    """Inputs and targets. Bytes stay bytes, so that gathering a batch moves little."""

    inputs: Any
    targets: Any


def examples_of(part: Any) -> Examples:
    """The arrays of a part that a task loaded."""
    if isinstance(part, Part):
        return Examples(part.images, np.asarray(part.labels, np.int64))
    raise NotImplementedError(type(part).__name__)


def to_tensors(examples: Examples) -> Examples:
    found: Examples = tf.nest.map_structure(tf.constant, examples)
    return found


def spec_of(examples: Examples) -> Examples:
    """Tensor specifications for any number of examples like these."""
    found: Examples = tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], tf.as_dtype(array.dtype)), examples
    )
    return found


def are_on_disk(examples: Examples) -> bool:
    """Whether some inputs are mapped files, which may be larger than memory."""
    return any(isinstance(array, np.memmap) for array in tf.nest.flatten(examples.inputs))


def input_bytes(examples: Examples) -> int:
    """Bytes of the inputs of one example."""
    return sum(array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in tf.nest.flatten(examples.inputs))


def gather(examples: Examples, indices: tf.Tensor) -> Examples:
    """Those of the examples that the indices name, in the graph."""
    found: Examples = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), examples)
    return found


class Reader:
    """Reads examples by their indices, from memory or from disk, into tensors."""

    def __init__(self, examples: Examples) -> None:
        self._gathers = tf.nest.map_structure(Gather, examples)

    def __call__(self, indices: Indices) -> Examples:
        found: Examples = tf.nest.map_structure(lambda read: tf.constant(read(indices)), self._gathers)
        return found
