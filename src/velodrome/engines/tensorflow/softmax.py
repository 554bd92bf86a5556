"""A model that ends in a softmax, trained by what goes into it: logits are exact where a probability rounds to zero."""

from __future__ import annotations

from typing import Literal

import numpy as np
import tensorflow as tf

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
    found = last_activation(outputs, classes)
    return None if found is None else tf.cast(tf.reshape(found[1], [-1, classes]), outputs.dtype)


def before_sigmoid(outputs: tf.Tensor) -> tf.Tensor:
    """What went into the sigmoid that outputs in a graph came out of; the outputs themselves if there is none."""
    last = outputs
    while last.op.type in _SAME_VALUES:
        last = last.op.inputs[0]
    return last.op.inputs[0] if last.op.type == "Sigmoid" else outputs


def logarithm(probabilities: tf.Tensor) -> tf.Tensor:
    """Log-probabilities; the smallest number of the format stands for zero."""
    smallest = np.finfo(probabilities.dtype.as_numpy_dtype).tiny
    return tf.math.log(tf.maximum(probabilities, smallest))


def class_losses(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Cross-entropy of each example; with smoothing, that share of a label's weight is spread over all classes."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    classes = logits.shape[-1]
    weights = tf.one_hot(labels, classes, dtype=logits.dtype) * (1 - smoothing) + smoothing / classes
    return tf.nn.softmax_cross_entropy_with_logits(labels=weights, logits=logits)
