"""What the user's own task returned for a batch, as a sum and counts in a graph, or a refusal in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import keras
import tensorflow as tf

from velodrome.errors import BadRequest
from velodrome.tasks.own import OwnTask

_FORMS = "return one value per example, or a sum and the count that it is a sum over"


class CalledModel:
    """The user's model as the user's loss calls it: in training or in evaluation, remembering what it returned last."""

    def __init__(self, model: keras.Model, *, training: bool) -> None:
        self._model, self._training = model, training
        self.returned: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.returned = self._model(*arguments, **{"training": self._training, **named})
        return self.returned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def sum_and_count(task: str, returned: Any, size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, bool]:
    """The summed loss, what it is a sum over in float64, and whether that is the number of examples."""
    if isinstance(returned, tuple | list) and len(returned) == 2:
        loss, count = returned
        if not tf.is_tensor(loss) or loss.shape.num_elements() != 1:
            raise BadRequest(f"--task {task!r}: loss() returned {described(loss)} as its sum: {_FORMS}")
        return tf.reshape(loss, []), as_number(task, "the count of loss()", count), False
    if not tf.is_tensor(returned):
        raise BadRequest(f"--task {task!r}: loss() returned {described(returned)}: {_FORMS}")
    # Sizes are known where the loss is called outside a graph.
    wanted = tf.get_static_value(size)
    if returned.shape.rank != 1 or (None not in (wanted, returned.shape[0]) and wanted != returned.shape[0]):
        raise BadRequest(f"--task {task!r}: loss() returned {described(returned)}: {_FORMS}")
    return tf.reduce_sum(returned), tf.cast(size, tf.float64), True


def count_of(task: OwnTask, outputs: Any, batch: Any) -> dict[str, tf.Tensor]:
    """What the user's `metrics` counted of a batch, in float64."""
    found = task.user.metrics(outputs, batch)
    if not isinstance(found, Mapping):
        raise BadRequest(f"--task {task.name!r}: metrics() returned {described(found)}: return sums by name")
    return {name: as_number(task.name, f"{name!r} of metrics()", value) for name, value in found.items()}


def as_number(task: str, what: str, value: Any) -> tf.Tensor:
    single = value.shape.num_elements() == 1 if tf.is_tensor(value) else isinstance(value, Real)
    if not single:
        raise BadRequest(
            f"--task {task!r}: {what} is {described(value)}: return one number, the sum over the batch"
        )
    return tf.reshape(tf.cast(value, tf.float64), [])


def described(value: Any) -> str:
    if tf.is_tensor(value):
        return f"a tensor of shape {tuple(value.shape)}" if value.shape.rank else "a single number"
    return f"{value!r}" if isinstance(value, Real) else f"{type(value).__name__!r}"
