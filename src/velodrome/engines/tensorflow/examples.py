"""Examples as tensors: where they are read from, which ones each step takes, and the format in which they are fed.

A step without examples holds one example that counts nothing, because TensorFlow's convolution gradient aborts the
process on an empty batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from velodrome.data.examples import ArrayField, ExamplePart, ExampleSet, Read
from velodrome.data.pixels import PixelTransform
from velodrome.engines.tensorflow.flat import Batch
from velodrome.engines.tensorflow.pixels import to_inputs
from velodrome.tasks import counts as task_batch
from velodrome.tasks.base import Task
from velodrome.tasks.schedule import Indices, Partition, evaluation_indices
from velodrome.tasks.supervised import Regression


class Examples(NamedTuple):
    """Inputs and targets by name. Bytes stay bytes, so that gathering a batch moves little."""

    inputs: Any
    targets: Any


class Source:
    """A part that a task loaded, as TensorFlow's side reads it."""

    def __init__(self, part: ExamplePart) -> None:
        self._part = part
        #: The whole arrays; None where rows are computed when they are asked for.
        self.arrays = None if part.computed else Examples(dict(part.inputs), dict(part.targets))
        self._read: Read | None = None
        self.spec = Examples(*(
            {field.name: tf.TensorSpec([None, *field.shape], tf.as_dtype(field.dtype)) for field in fields}
            for fields in (part.input_fields, part.target_fields)
        ))
        #: Bytes of the inputs of one example.
        self.input_bytes = sum(field.bytes for field in part.input_fields)

    def __len__(self) -> int:
        return len(self._part)

    @property
    def in_memory(self) -> bool:
        """Whether all of it may become tensors; mapped files may be larger than memory."""
        return self._part.in_memory

    @property
    def bytes(self) -> int:
        return len(self) * (self.input_bytes + sum(field.bytes for field in self._part.target_fields))

    def tensors(self) -> Examples:
        """All of it."""
        return _tensors(self.arrays)

    def read(self, indices: Indices, epoch: int = 0) -> Examples:
        """Some examples, from memory or from disk; `epoch` is 0 in an evaluation."""
        self._read = self._read or self._part.reader()
        return _tensors(Examples(*map(dict, self._read(indices, epoch))))


def _tensors(arrays: Any) -> Examples:
    tensors: Examples = tf.nest.map_structure(tf.constant, arrays)
    return tensors


def gather(examples: Examples, indices: tf.Tensor) -> Examples:
    """Those of the examples that the indices name, in the graph."""
    gathered: Examples = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), examples)
    return gathered


EVALUATION_BATCH = 500
PARTS = ("train", "validation", "test")


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


class GraphBatch(task_batch.Batch):
    """A batch in a graph, which is made once for batches of any size."""

    def __len__(self) -> int:
        size = next(iter((*self.targets.values(), *self.inputs.values()))).shape[0]
        if size is None:
            raise TypeError(
                "len(batch) is not known while TensorFlow traces a graph for batches of any size: use "
                "tf.shape(batch.y)[0]"
            )
        return int(size)


class ExampleInputs:
    """Examples as a Keras model and a task take them, cast in the graph.

    Numbers with fractions are fed in the job's format, whole numbers as int32 or int64, bytes of images as `pixels`
    transforms them.
    """

    def __init__(self, data: ExampleSet, dtype: tf.DType, pixels: PixelTransform | None) -> None:
        self.pixels, self._dtype, self._data = pixels, dtype, data
        #: The format of every input, by name.
        self.formats = {field.name: self._format(field) for field in self._data.inputs}
        self._target_formats = {field.name: self._format(field) for field in self._data.targets}

    def _format(self, field: ArrayField) -> tf.DType:
        if not field.is_whole or field.dtype == "bool" or self._is_image(field):
            return self._dtype
        return tf.int32 if field.dtype == "int32" else tf.int64

    def _is_image(self, field: ArrayField) -> bool:
        return field.dtype == "uint8" and field.name in self._data.images

    def batch(self, inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor]) -> GraphBatch:
        """Rows of the arrays as a batch, in the order in which the data names them."""
        fed = {}
        for field in self._data.inputs:
            if self._is_image(field):
                assert self.pixels is not None, "bytes of images have a transform"
                fed[field.name] = to_inputs(inputs[field.name], self.pixels, self._dtype)
            else:
                fed[field.name] = tf.cast(inputs[field.name], self.formats[field.name])
        return GraphBatch(fed, {name: tf.cast(targets[name], form) for name, form in self._target_formats.items()})

    def description(self) -> dict[str, Any]:
        """Every input as a saved model records it."""
        return {
            field.name: {"shape": list(field.shape), "dtype": field.dtype, "fed": self.formats[field.name].name}
            for field in self._data.inputs
        }
