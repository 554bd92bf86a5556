"""The examples of a part, whatever the task feeds: inputs and targets, each an array or several by name.

The same structure holds arrays in the process that loaded them, and tensors in the graphs that gather batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from velodrome.data.examples import ExamplePart, Gather
from velodrome.tasks.schedule import Indices


class Examples(NamedTuple):
    """Inputs and targets. Bytes stay bytes, so that gathering a batch moves little."""

    inputs: Any
    targets: Any


class Source:
    """A part that a task loaded, as TensorFlow's side reads it."""

    def __init__(self, part: ExamplePart, kind: str = "arrays") -> None:
        """`kind` is that of the data: labelled images are one array of each, and not arrays by name."""
        #: The whole arrays; None where rows are computed when they are asked for.
        self.arrays: Examples | None = None
        if kind == "images":
            self.arrays = Examples(part.images, np.asarray(part.labels, np.int64))
        elif not part.computed:
            self.arrays = Examples(dict(part.inputs), {name: np.asarray(each) for name, each in part.targets.items()})
        self._length = len(part)
        self._rows: Any = part.reader() if self.arrays is None else None
        self.spec: Examples = _spec_of(part if self.arrays is None else self.arrays)
        self.input_bytes = sum(_bytes_of(spec) for spec in tf.nest.flatten(self.spec.inputs))

    def __len__(self) -> int:
        return self._length

    @property
    def in_memory(self) -> bool:
        """Whether all of it may become tensors; mapped files may be larger than memory."""
        arrays = self.arrays
        return arrays is not None and not any(isinstance(one, np.memmap) for one in tf.nest.flatten(arrays.inputs))

    @property
    def bytes(self) -> int:
        return len(self) * sum(_bytes_of(spec) for spec in tf.nest.flatten(self.spec))

    def tensors(self) -> Examples:
        """All of it."""
        found: Examples = tf.nest.map_structure(tf.constant, self.arrays)
        return found

    def read(self, indices: Indices, epoch: int = 0) -> Examples:
        """Some examples, from memory or from disk; `epoch` is 0 in an evaluation."""
        if self.arrays is None:
            return Examples(*(_constants(arrays) for arrays in self._rows(indices, epoch)))
        if self._rows is None:
            self._rows = tf.nest.map_structure(Gather, self.arrays)
        found: Examples = tf.nest.map_structure(lambda gather: tf.constant(gather(indices)), self._rows)
        return found


def _constants(arrays: Any) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def _spec_of(part: Any) -> Examples:
    """Tensor specifications for any number of examples of a part, or of its arrays."""
    if isinstance(part, Examples):
        found: Examples = tf.nest.map_structure(
            lambda array: tf.TensorSpec([None, *array.shape[1:]], tf.as_dtype(array.dtype)), part
        )
        return found
    return Examples(*(
        {one.name: tf.TensorSpec([None, *one.shape], tf.as_dtype(one.dtype)) for one in fields}
        for fields in (part.input_fields, part.target_fields)
    ))


def _bytes_of(spec: tf.TensorSpec) -> int:
    """Of one example."""
    return int(spec.dtype.size * np.prod(spec.shape[1:], dtype=np.int64))


def gather(examples: Examples, indices: tf.Tensor) -> Examples:
    """Those of the examples that the indices name, in the graph."""
    found: Examples = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), examples)
    return found
