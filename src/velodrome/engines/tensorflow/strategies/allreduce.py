"""Synchronous training with one flat gradient buffer: TensorFlow computes, a transport all-reduces.

A call into TensorFlow applies the gradient that was summed last and computes the next one. Where possible the gradient
is summed in the tensor's own memory and passed back to TensorFlow, so that it is never copied."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.strategies.replicas import Replicas, traced
from velodrome.engines.tensorflow.tasks import network_of
from velodrome.engines.tensorflow.weights import ReplicaWeights, steps_of_epoch
from velodrome.tasks.base import Counts
from velodrome.training.context import Context
from velodrome.transport.base import Transport


def writable_memory(tensor: tf.Tensor) -> NDArray[Any] | None:
    """The tensor's memory as a flat array, or None if it cannot be written in place. Write only to a tensor that you
    alone hold."""
    return _view(tensor) if "CPU" in tensor.device and available() else None


@cache
def available() -> bool:
    """Whether what is written through the view appears in the tensor."""
    with tf.device("CPU:0"):
        tensor = tf.zeros([64]) + 1  # computed, not a constant: nothing else holds its memory
    try:
        _view(tensor)[:] = np.arange(64)
    except (TypeError, ValueError, BufferError, AttributeError):
        return False
    return bool(np.array_equal(tf.identity(tensor).numpy(), np.arange(64)))


def _view(tensor: tf.Tensor) -> NDArray[Any]:
    lent = np.asarray(memoryview(tensor))
    memory = (ctypes.c_char * lent.nbytes).from_address(lent.ctypes.data)
    return np.frombuffer(memoryview(memory), lent.dtype)


class AllReduce(Replicas):
    """One replica in this process; gradients are summed with the other ranks by a transport."""

    collective_seconds: float = 0.0

    def __init__(self, context: Context, transport: Transport) -> None:
        self._transport, network = transport, network_of(context)
        strategy = tf.distribute.get_strategy()
        self._flat = ReplicaWeights(context.job, network, strategy, steps_of_epoch(context))
        super().__init__(context, network, self._flat, strategy, [None])
        self.implementation = network.implementation(context.strategy, "mpi")
        initial = self._flat.buffer.numpy()
        transport.broadcast(initial)
        self._flat.start_from(initial)

    def _functions(self) -> tuple[Any, Any, Any]:
        # What stays the same for many steps is kept in variables: arguments cost time in each call.
        self._input_variables = tf.nest.map_structure(_variable_for, self._feed.spec)
        self._current_inputs: Any = None
        self._step = tf.Variable(0, dtype=tf.int64)
        self._update = tf.Variable(0, dtype=tf.int64)
        flat = tf.TensorSpec([self._flat.buffer.shape[0] + int(self._network.by_total)], self._network.dtype)
        self._start = traced(self._compute)
        self._continue = traced(self._apply_and_compute, flat)
        self._finish = traced(self._apply_summed, flat)
        return None, self._trace_evaluation(), None

    def _compute(self) -> tf.Tensor:
        step = self._step.assign_add(1).read_value() - 1
        inputs = tf.nest.map_structure(lambda variable: variable.read_value(), self._input_variables)
        batch = self._feed.batch(inputs, step)
        return self._gradient(0, batch)

    def _apply_summed(self, gradient: tf.Tensor) -> None:
        self._flat.apply(gradient, self._update.assign_add(1).read_value())

    def _apply_and_compute(self, gradient: tf.Tensor) -> tf.Tensor:
        self._apply_summed(gradient)
        return self._compute()

    def _set_inputs(self, inputs: Any) -> None:
        """Assign the inputs that have changed."""
        new, old = tf.nest.flatten(inputs), tf.nest.flatten(self._current_inputs) if self._current_inputs else []
        for index, (variable, value) in enumerate(zip(tf.nest.flatten(self._input_variables), new, strict=True)):
            if not old or old[index] is not value:
                variable.assign(value)
        self._current_inputs = inputs

    def train(self, first: int, last: int) -> Counts:
        for window in self._feed.windows(first, last):
            self._set_inputs(window.inputs[0])
            self._step.assign(window.first)
            self._update.assign(self._iterations)
            gradient = self._reduced(self._start())
            for _ in range(window.first + 1, window.last):
                gradient = self._reduced(self._continue(gradient))
            self._finish(gradient)
            self._iterations += window.last - window.first
        return self._take_counts()

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

    def _sum_over_ranks(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.array(vector, np.float64)
        self._transport.all_reduce(total)
        return total

    def agree(self, number: int) -> int:
        return number  # ranks synchronise at every step, however many steps a call takes

    def close(self) -> None:
        self._transport.close()


def _variable_for(spec: tf.TensorSpec) -> tf.Variable:
    empty = [0 if length is None else length for length in spec.shape]
    return tf.Variable(tf.zeros(empty, spec.dtype), shape=spec.shape)
