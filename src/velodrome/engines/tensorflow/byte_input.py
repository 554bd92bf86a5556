"""Finds out whether a Keras model scales its input as if it were bytes, in a traced graph of it."""

from __future__ import annotations

import tensorflow as tf

from velodrome.models.checks import Operation, is_for_bytes

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
