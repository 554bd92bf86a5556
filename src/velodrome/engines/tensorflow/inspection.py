"""What can be seen of a Keras model before it trains: what its layers take, what it expects as input, what it ends in,
and why several workers would not end with the weights of one.

A pass is measured once outside any graph, because a graph does not say what its layers take; so shares are those of the
layers, and a step in a graph is faster than their sum. The clock is passed from layer to layer as in PyTorch's module
of the same name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from velodrome.data.examples import ExampleSet
from velodrome.data.pixels import PixelTransform, transform_of, transform_of_arrays
from velodrome.job.job import Job
from velodrome.models.checks import BATCH_NORMALISATION, RANDOM_NUMBERS, STATISTICS, Operation, is_for_bytes, preserved


class _Recorder:
    """Attributes the time of a pass to the layers that are being computed."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.shapes: dict[int, list[int]] = {}
        self.order: list[keras.Layer] = []
        self.activation_bytes = 0
        self._stack: list[int] = [0]
        self._owner, self._since = 0, time.perf_counter()

    def pass_to(self, owner: int) -> None:
        now = time.perf_counter()
        self.seconds[self._owner] = self.seconds.get(self._owner, 0.0) + now - self._since
        self._owner, self._since = owner, now

    def enter(self, layer: keras.Layer) -> None:
        if id(layer) not in self.shapes:
            self.order.append(layer)
            self.shapes[id(layer)] = []
        self._stack.append(id(layer))
        self.pass_to(id(layer))

    def leave(self, layer: keras.Layer, outputs: Any) -> Any:
        tensors = [each for each in tf.nest.flatten(outputs) if isinstance(each, tf.Tensor)]
        if tensors:
            self.shapes[id(layer)] = list(tensors[0].shape)
            self.activation_bytes += sum(int(np.prod(each.shape)) * each.dtype.size for each in tensors)
        marked = tf.nest.map_structure(lambda each: self._marked(each, id(layer)), outputs)
        self._stack.pop()
        self.pass_to(self._stack[-1])
        return marked

    def _marked(self, tensor: Any, owner: int) -> Any:
        """The same tensor; its gradient passes the clock to the owner."""
        if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
            return tensor

        @tf.custom_gradient
        def mark(same: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                self.pass_to(owner)
                return upstream

            return tf.identity(same), gradient

        return mark(tensor)


@contextmanager
def _recorded(recorder: _Recorder) -> Iterator[None]:
    original = keras.layers.Layer.__call__

    def called(layer: keras.Layer, *inputs: Any, **options: Any) -> Any:
        if not tf.executing_eagerly():  # inside a tf.function of the user's, which is measured as a whole
            return original(layer, *inputs, **options)
        recorder.enter(layer)
        return recorder.leave(layer, original(layer, *inputs, **options))

    keras.layers.Layer.__call__ = called
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = original


def layers_of(model: keras.Model, inputs: Any) -> tuple[list[dict[str, Any]], int]:
    """A row for each layer that computes or has weights of its own, and the bytes of all layers' outputs.

    The model's own variables are used; nothing of it changes.
    """
    for _ in range(2):  # the first pass prepares kernels and memory
        recorder = _Recorder()
        with keras.StatelessScope(), tf.GradientTape() as tape, _recorded(recorder):
            outputs = [each for each in tf.nest.flatten(model(inputs, training=True)) if each.dtype.is_floating]
            loss = tf.add_n([tf.cast(tf.reduce_sum(each), tf.float32) for each in outputs])
        tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        recorder.pass_to(0)
    seen: set[int] = set()
    rows = []
    for layer in recorder.order:
        own = [each for each in [*layer._trainable_variables, *layer._non_trainable_variables] if id(each) not in seen]
        seen.update(map(id, own))
        seconds = recorder.seconds.get(id(layer), 0.0)
        if layer is not model or own:
            rows.append({
                "name": layer.path or layer.name, "kind": type(layer).__name__, "shape": recorder.shapes[id(layer)],
                "parameters": sum(int(np.prod(each.shape)) for each in own), "seconds": seconds,
            })
    return rows, recorder.activation_bytes


def reasons_of(model: keras.Model, batch: Any) -> list[str]:
    """Why workers and one process differ; `batch` is the specification of what the model takes."""
    changed: list[keras.Variable] = []

    def call(inputs: Any) -> None:
        with keras.StatelessScope() as scope:
            model(inputs, training=True)
        changed.extend(each for each in model.non_trainable_variables if scope.get_current_value(each) is not None)

    try:
        with preserved():
            graph = tf.function(call, autograph=False).get_concrete_function(batch).graph
    except Exception:  # a model that cannot be traced on any batch is refused elsewhere, or takes one size only
        return []
    norms = {id(each) for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)
             for each in layer.non_trainable_variables}
    floating = [each for each in changed if tf.as_dtype(each.dtype).is_floating]
    holding = {
        BATCH_NORMALISATION: any(id(each) in norms for each in floating),
        RANDOM_NUMBERS: any("Random" in operation for operation in _operations(graph)),
        STATISTICS: any(id(each) not in norms for each in floating),
    }
    return [reason for reason, holds in holding.items() if holds]


def _operations(graph: Any) -> Iterator[str]:
    """The kinds of operations in a graph and in the functions that it calls."""
    definition = graph.as_graph_def()
    yield from (node.op for node in definition.node)
    yield from (node.op for function in definition.library.function for node in function.node_def)


# -- what it expects as input

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


def _all_layers(model: Any) -> Iterator[keras.layers.Layer]:
    """The layers of a model in the order in which they compute, with those of models within it."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _all_layers(layer)
        else:
            yield layer


def _preprocessing(model: keras.Model) -> keras.layers.Layer | None:
    """The Rescaling or Normalization that gets the pixels as they come in."""
    for layer in _all_layers(model):
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
_KEPT_VALUES = {"Identity", "Cast", "Reshape", "Transpose"}


def expects_bytes(images: tf.Tensor) -> bool:
    """Whether what a graph does with its input first is meant for numbers up to 255."""
    waiting = [images]
    while waiting:
        source = waiting.pop()
        for consumer in source.consumers():
            if consumer.type in _KEPT_VALUES:
                waiting += consumer.outputs
            elif operation := _OPERATIONS.get(consumer.type):
                others = [other for other in consumer.inputs if other is not source]
                number = tf.get_static_value(others[0]) if others else None
                # Only what the input is divided by or lessened by: a number over the input is something else.
                first = operation == "multiply" or consumer.inputs[0] is source
                if number is not None and first and is_for_bytes(operation, number):
                    return True
    return False


# -- what it ends in

#: What a model ends in. Of a sigmoid, too, Keras' own cross-entropy takes what goes into it.
Activation = Literal["softmax", "sigmoid"]

_ACTIVATIONS: dict[str, Activation] = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
#: What may follow it: other shapes and number formats of the same values.
_SAME_VALUES = {"Identity", "Reshape", "Squeeze", "Cast"}


def last_activation(outputs: tf.Tensor, classes: int) -> tuple[Activation, tf.Tensor] | None:
    """What outputs in a graph came out of, a softmax or a sigmoid over the classes, and what went into it."""
    last = outputs
    while last.op.type in _SAME_VALUES or _takes_all(last.op):
        last = last.op.inputs[0]
    name = _ACTIVATIONS.get(last.op.type)
    if name is None or last.shape[-1] != classes:
        return None
    return name, last.op.inputs[0]


def _takes_all(operation: tf.Operation) -> bool:
    """Whether it is an indexing such as `x[:, 0]` that leaves every value where it is: the axis has length 1."""
    if operation.type != "StridedSlice":
        return False
    source, taken = operation.inputs[0].shape[1:], operation.outputs[0].shape[1:]
    strides = tf.get_static_value(operation.inputs[3])
    return bool(
        source.is_fully_defined() and taken.is_fully_defined() and source.num_elements() == taken.num_elements()
        and strides is not None and (strides == 1).all()
    )


def before_activation(outputs: tf.Tensor, classes: int) -> tf.Tensor | None:
    """What went into the last activation, in the shape of the outputs; None if there is none."""
    last = last_activation(outputs, classes)
    return None if last is None else tf.cast(tf.reshape(last[1], [-1, classes]), outputs.dtype)


def before_sigmoid(outputs: tf.Tensor) -> tf.Tensor:
    """What went into the sigmoid that outputs in a graph came out of; the outputs themselves if there is none."""
    last = outputs
    while last.op.type in _SAME_VALUES:
        last = last.op.inputs[0]
    return last.op.inputs[0] if last.op.type == "Sigmoid" else outputs
