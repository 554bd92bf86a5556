"""The learning rate of each update, where TensorFlow's graphs read it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.job.job import Job
from velodrome.worker.context import Context


class GraphRates:
    """One rate for an epoch or, where the job's schedule changes it at every step, one for each of its updates."""

    def __init__(self, job: Job, dtype: Any, steps: int) -> None:
        """Its variables are on the device of the caller. `steps` are those of an epoch: variables on servers must have
        a fixed shape."""
        self._by_step = job.rate_changes_within_epoch
        self._rate = tf.Variable(job.rate, dtype=dtype)
        if self._by_step:
            self._rates = tf.Variable(np.full(steps, job.rate), dtype=dtype)
            #: Updates before the epoch.
            self._before = tf.Variable(0, dtype=tf.int64)

    def at(self, iteration: tf.Tensor) -> tf.Tensor:
        """The rate of an update, counted from 1."""
        if not self._by_step:
            return self._rate.read_value()
        rates = self._rates.read_value()
        place = iteration - 1 - self._before.read_value()
        # A closure that a lost worker did not finish runs again, so there may be more updates than steps.
        return tf.gather(rates, tf.clip_by_value(place, 0, tf.size(rates, tf.int64) - 1))

    def set(self, rates: NDArray[np.float64], before: int) -> None:
        """Use these rates for the updates after so many."""
        if self._by_step:
            self._rates.assign(rates)
            self._before.assign(before)
        else:
            self._rate.assign(rates[0])


def steps_of_epoch(context: Context) -> int:
    """The steps of an epoch, where a schedule needs to know them."""
    return context.task.schedule(context.job, context.data, 1).steps if context.job.rate_changes_within_epoch else 1


class KerasRates(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The same as Keras optimizers take it."""

    def __init__(self, rates: GraphRates) -> None:
        self._rates = rates

    def __call__(self, step: Any) -> tf.Tensor:
        return self._rates.at(tf.cast(step, tf.int64) + 1)

    def get_config(self) -> dict[str, Any]:
        return {}
