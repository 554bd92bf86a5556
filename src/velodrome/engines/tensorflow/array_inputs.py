"""Named arrays as a Keras model and a task take them: which format each is fed in, done in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from velodrome.data.examples import ArrayField, ExampleSet
from velodrome.data.pixels import transform_of_arrays
from velodrome.engines.tensorflow.pixels import to_inputs
from velodrome.job.job import Job
from velodrome.tasks.counts import Batch


class GraphBatch(Batch):
    """A batch in a graph, which is made once for batches of any size."""

    def __len__(self) -> int:
        size = next(iter((*self.targets.values(), *self.inputs.values()))).shape[0]
        if size is None:
            raise TypeError(
                "len(batch) is not known while TensorFlow traces a graph for batches of any size: use "
                "tf.shape(batch.y)[0]"
            )
        return int(size)


class ArrayInputs:
    """Numbers with fractions are fed in the job's format, whole numbers as int32 or int64, bytes of images scaled as
    `--pixels` says."""

    def __init__(self, job: Job, data: ExampleSet, dtype: tf.DType) -> None:
        self.pixels = transform_of_arrays(job.pixels, data)
        self._dtype, self._data = dtype, data
        #: The format of every input, by name.
        self.formats = {one.name: self._format(one) for one in data.inputs}
        self._target_formats = {one.name: self._format(one) for one in data.targets}

    def _format(self, field: ArrayField) -> tf.DType:
        if not field.is_whole or field.dtype == "bool" or self._is_image(field):
            return self._dtype
        return tf.int32 if field.dtype == "int32" else tf.int64

    def _is_image(self, field: ArrayField) -> bool:
        return field.dtype == "uint8" and field.name in self._data.images

    def batch(self, inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor]) -> Batch:
        """Rows of the arrays as a batch, in the order in which the data names them."""
        fed = {}
        for one in self._data.inputs:
            if self._is_image(one):
                assert self.pixels is not None, "bytes of images have a transform"
                fed[one.name] = to_inputs(inputs[one.name], self.pixels, self._dtype)
            else:
                fed[one.name] = tf.cast(inputs[one.name], self.formats[one.name])
        return GraphBatch(fed, {name: tf.cast(targets[name], form) for name, form in self._target_formats.items()})

    def description(self) -> dict[str, Any]:
        """Every input as a saved model records it."""
        return {
            one.name: {"shape": list(one.shape), "dtype": one.dtype, "fed": self.formats[one.name].name}
            for one in self._data.inputs
        }
