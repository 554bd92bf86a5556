"""Synchronous training with one flat gradient summed by MPI: TensorFlow computes, the transport carries.

A call into TensorFlow applies the gradient that was summed last and computes the next. The buffer that it returns is
summed where it lies and handed back, so no gradient is ever copied on the way.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import FlatModel
from velodrome.engines.tensorflow.replicas import Replicas
from velodrome.engines.tensorflow.tasks.base import task_of_job
from velodrome.engines.tensorflow.tensor_memory import writable_memory
from velodrome.tasks.counts import Counts
from velodrome.transport.base import Transport
from velodrome.worker import loop
from velodrome.worker.context import Context
from velodrome.worker.transports import connect_mpi


class AllReduce(Replicas):
    """One replica in this process; the others are reached through a transport."""

    collective_seconds: float = 0.0

    def __init__(self, context: Context, network: FlatModel, transport: Transport) -> None:
        self._transport = transport
        super().__init__(context, network, tf.distribute.get_strategy(), [None])
        initial = self._weights.numpy()
        transport.broadcast(initial)
        self._weights.assign(initial)

    def _functions(self) -> tuple[Any, Any, Any]:
        # What is the same at many steps is held in variables: arguments cost time in each call.
        self._handed = tf.nest.map_structure(_variable_for, self._feed.spec)
        self._held: Any = None
        self._step = tf.Variable(0, dtype=tf.int64)
        self._update = tf.Variable(0, dtype=tf.int64)
        flat = tf.TensorSpec(self._weights.shape, self._network.dtype)
        self._start = tf.function(self._compute, autograph=False).get_concrete_function()
        self._go_on = tf.function(self._apply_and_compute, autograph=False).get_concrete_function(flat)
        self._finish = tf.function(self._apply_summed, autograph=False).get_concrete_function(flat)
        return None, self._counting(), None

    def _compute(self) -> tf.Tensor:
        step = self._step.assign_add(1).read_value() - 1
        handed = tf.nest.map_structure(lambda variable: variable.read_value(), self._handed)
        return self._gradient(0, self._weights.read_value(), self._feed.deal(handed, step))

    def _apply_summed(self, gradient: tf.Tensor) -> None:
        self._apply(gradient, self._update.assign_add(1).read_value())

    def _apply_and_compute(self, gradient: tf.Tensor) -> tf.Tensor:
        self._apply_summed(gradient)
        return self._compute()

    def _hold(self, handed: Any) -> None:
        """Keep what was handed, as far as it is not kept already."""
        new, old = tf.nest.flatten(handed), tf.nest.flatten(self._held) if self._held else []
        for index, (variable, value) in enumerate(zip(tf.nest.flatten(self._handed), new, strict=True)):
            if not old or old[index] is not value:
                variable.assign(value)
        self._held = handed

    def train(self, first: int, last: int) -> Counts:
        for window in self._feed.windows(first, last):
            self._hold(window.handed[0])
            self._step.assign(window.first)
            self._update.assign(self._iterations)
            gradient = self._reduced(self._start())
            for _ in range(window.first + 1, window.last):
                gradient = self._reduced(self._go_on(gradient))
            self._finish(gradient)
            self._iterations += window.last - window.first
        return self._counted()

    def _reduced(self, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient summed over the ranks: in place where that is possible, else through a copy."""
        memory = writable_memory(gradient)
        buffer = np.array(gradient) if memory is None else memory
        status = self._context.status
        status.waiting = True
        began = time.perf_counter()
        self._transport.all_reduce(buffer)
        self.collective_seconds += time.perf_counter() - began
        status.waiting = False
        return tf.constant(buffer) if memory is None else gradient

    def _summed(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.array(vector, np.float64)
        self._transport.all_reduce(total)
        return total

    def agree(self, number: int) -> int:
        return number  # ranks meet at every step, however many steps a call takes

    def close(self) -> None:
        self._transport.close()


def _variable_for(spec: tf.TensorSpec) -> tf.Variable:
    empty = [0 if length is None else length for length in spec.shape]
    return tf.Variable(tf.zeros(empty, spec.dtype), shape=spec.shape)


def train(context: Context) -> None:
    """Meet the other ranks, then run the loop."""
    with context.events.phase("connect"), context.waiting():
        transport = connect_mpi(context)
    _ = context.data  # a phase of its own
    with context.events.phase("build"):
        learner = AllReduce(context, task_of_job(context).network(context), transport)
    loop.run(context, learner)
