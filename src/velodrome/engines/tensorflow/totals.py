"""Gradients of a sum that is divided by what all replicas together counted: those of a loss with a count of its own.

The count travels as one more number behind the flat gradient, so it needs no message of its own.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from velodrome.engines.tensorflow.flat import StepResult


def total_of(result: StepResult, dtype: tf.DType) -> tf.Tensor:
    """What one replica has counted in a step."""
    return tf.cast(result.counts[-2], dtype)


def with_total(gradient: Any, result: StepResult) -> Any:
    """The gradient of a replica's sum, followed by its total, so that both are summed over the replicas at once."""
    if isinstance(gradient, list):
        return [*gradient, total_of(result, gradient[0].dtype)]
    return tf.concat([gradient, tf.reshape(total_of(result, gradient.dtype), [1])], 0)


def over_total(gradient: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """The gradient divided by the total; zero if nothing was counted."""
    return tf.math.divide_no_nan(gradient, total)
