"""Examples as a Keras model takes them.

Bytes of images are scaled by the job's choice, or by what the model begins with; numbers are cast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from velodrome.data.examples import ArrayField, ExampleSet
from velodrome.data.pixels import PixelTransform, transform_of, transform_of_arrays
from velodrome.job.job import Job
from velodrome.models.checks import Operation, is_for_bytes
from velodrome.tasks.base import Batch

#: Layers that may come before a preprocessing layer, because they leave the range of pixels as it is. So do all whose
#: names begin with `Random`.
_PASSED = (
    layers.InputLayer, layers.Identity, layers.Resizing, layers.CenterCrop, layers.Cropping2D, layers.ZeroPadding2D,
    layers.Reshape, layers.Permute,
)
#: A Rescaling by less than this is meant for bytes: 1/255, 1/127.5 and 1/128 are usual.
_FOR_BYTES = 1 / 16

Expected = Literal["bytes", "adapting", "other"]


def choose_transform(
    job: Job, model: keras.Model, data: ExampleSet, *, classifies_images: bool
) -> tuple[PixelTransform | None, tuple[str, ...]]:
    """The transform of a job's pixels, and what the user should know about it, as sentences; None without pixels."""
    if not classifies_images:
        return transform_of_arrays(job.pixels, data), ()
    first = _preprocessing(model)
    expected = "other" if first is None else _expected(first)
    if first is None or expected == "other":
        return transform_of(job.pixels, data), ()
    begins = f"model {job.model!r} begins with {type(first).__name__} ({first.name!r})"
    if expected == "adapting":
        note = f"{begins}, which was never adapted and changes nothing: --pixels standardize does what it would"
        return transform_of(job.pixels, data), (note,)
    if job.pixels == "auto":
        note = f"{begins}, so it is fed pixels from 0 to 255, as with --pixels byte; --pixels unit feeds 0 to 1"
        return transform_of("byte", data), (note,)
    if job.pixels == "byte":
        return transform_of("byte", data), ()
    note = f"{begins} for pixels from 0 to 255, and --pixels {job.pixels} feeds others: choose --pixels byte"
    return transform_of(job.pixels, data), (note,)


def to_inputs(images: tf.Tensor, transform: PixelTransform, dtype: Any) -> tf.Tensor:
    """Bytes (count, height, width, channels) as they are fed to the model, in the graph."""
    numbers = tf.cast(images, dtype)
    if transform.is_plain:
        (scale,) = transform.factor
        return numbers if scale == 1 else numbers * tf.constant(scale, dtype)
    # As long as a row of pixels: with a number a channel, which TensorFlow would repeat, it takes three times longer.
    shape = (int(images.shape[2]), len(transform.factor))
    factor, offset = (
        tf.constant(np.broadcast_to(values, shape), dtype) for values in (transform.factor, transform.offset)
    )
    return numbers * factor + offset


def _layers(model: Any) -> Iterator[keras.layers.Layer]:
    """The layers of a model in the order in which they compute, with those of models within it."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer


def _preprocessing(model: keras.Model) -> keras.layers.Layer | None:
    """The Rescaling or Normalization that gets the pixels as they come in."""
    for layer in _layers(model):
        if isinstance(layer, layers.Rescaling | layers.Normalization):
            return layer
        if not isinstance(layer, _PASSED) and not type(layer).__name__.startswith("Random"):
            return None
    return None


def _expected(layer: Any) -> Expected:
    """What a preprocessing layer was made for."""
    if isinstance(layer, layers.Rescaling):
        return "bytes" if 0 < np.abs(np.asarray(layer.scale, np.float64)).max() < _FOR_BYTES else "other"
    if layer.input_mean is not None:
        mean, variance = np.asarray(layer.input_mean), np.asarray(layer.input_variance)
    elif layer.built:
        mean, variance = np.asarray(layer.adapt_mean), np.asarray(layer.adapt_variance)
    else:
        return "adapting"
    if not mean.any() and (variance == 1).all():
        return "adapting"
    # Numbers from 0 to 1 have a mean of 1 and a variance of 1/4 at most.
    return "bytes" if mean.max() > 1 or variance.max() > 1 else "other"


_OPERATIONS: dict[str, Operation] = {
    "RealDiv": "divide", "Div": "divide", "Mul": "multiply", "Sub": "subtract",
}
#: What keeps the values of the input.
_SAME_VALUES = {"Identity", "Cast", "Reshape", "Transpose"}


def expects_bytes(images: tf.Tensor) -> bool:
    """Whether what a graph does with its input first is meant for numbers up to 255."""
    waiting = [images]
    while waiting:
        source = waiting.pop()
        for consumer in source.consumers():
            if consumer.type in _SAME_VALUES:
                waiting += consumer.outputs
            elif operation := _OPERATIONS.get(consumer.type):
                others = [other for other in consumer.inputs if other is not source]
                number = tf.get_static_value(others[0]) if others else None
                # Only what the input is divided by or lessened by: a number over the input is something else.
                first = operation == "multiply" or consumer.inputs[0] is source
                if number is not None and first and is_for_bytes(operation, number):
                    return True
    return False


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
        if not field.is_whole or field.dtype == "bool" or field.is_byte_image:
            return self._dtype
        return tf.int32 if field.dtype == "int32" else tf.int64

    def batch(self, inputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor]) -> GraphBatch:
        """Rows of the arrays as a batch, in the order in which the data names them."""
        fed = {}
        for field in self._data.inputs:
            if field.is_byte_image:
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
