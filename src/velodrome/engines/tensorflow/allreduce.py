"""Synchronous training with one flat gradient summed by MPI: TensorFlow computes, the transport carries.

A call into TensorFlow applies the gradient that was summed last and computes the next. The buffer that it returns is
summed where it lies and handed back, so no gradient is ever copied on the way.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow import deck as decks
from velodrome.engines.tensorflow.deck import Deck
from velodrome.engines.tensorflow.network import Network
from velodrome.engines.tensorflow.replicas import Replicas
from velodrome.transport.base import Transport
from velodrome.transport.mpi import connect
from velodrome.worker import loop
from velodrome.worker.context import Context
from velodrome.worker.counts import Counts
from velodrome.worker.schedule import Schedule


class AllReduce(Replicas):
    """One replica in this process; the others are reached through a transport."""

    def __init__(self, context: Context, network: Network, transport: Transport) -> None:
        self._transport = transport
        super().__init__(context, network, tf.distribute.get_strategy(), [None])
        initial = self._weights.numpy()
        transport.broadcast(initial)
        self._weights.assign(initial)

    def _functions(self) -> tuple[Any, Any, Any]:
        # What is the same at every step is held in variables: arguments cost time in each call.
        self._deck = Deck(*(tf.Variable(np.zeros(1, np.int64), shape=[None]) for _ in Deck._fields))
        self._step = tf.Variable(0, dtype=tf.int64)
        self._update = tf.Variable(0, dtype=tf.int64)
        flat = tf.TensorSpec([self.parameters], self._network.dtype)
        self._start = tf.function(self._compute, autograph=False).get_concrete_function()
        self._go_on = tf.function(self._apply_and_compute, autograph=False).get_concrete_function(flat)
        self._finish = tf.function(self._apply_summed, autograph=False).get_concrete_function(flat)
        _, count, _ = super()._functions()
        return None, count, None

    def _compute(self) -> tf.Tensor:
        step = self._step.assign_add(1).read_value() - 1
        hand, statistics = self._deck, self._statistics[0]
        images, labels = decks.deal(hand, self._pixels["train"], step)
        gradient, after, tally = self._network.gradient(
            self._weights.read_value(), self._network.unpack, [value.read_value() for value in statistics],
            images, labels, hand.real[step], hand.batch[step],
        )
        self._tallies[0].assign_add(tally)
        for variable, value in zip(statistics, after, strict=True):
            variable.assign(value)
        return gradient

    def _apply_summed(self, gradient: tf.Tensor) -> None:
        self._apply(gradient, self._update.assign_add(1).read_value())

    def _apply_and_compute(self, gradient: tf.Tensor) -> tf.Tensor:
        self._apply_summed(gradient)
        return self._compute()

    def begin_epoch(self, schedule: Schedule) -> None:
        for variable, values in zip(self._deck, decks.train_decks(schedule, self._ranks)[0], strict=True):
            variable.assign(values)

    def train(self, first: int, last: int) -> Counts:
        self._step.assign(first)
        self._update.assign(self._iterations)
        gradient = self._reduced(self._start())
        for _ in range(first + 1, last):
            gradient = self._reduced(self._go_on(gradient))
        self._finish(gradient)
        self._iterations += last - first
        return self._counted()

    def _reduced(self, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient summed over the ranks: where it lies if that is the host's memory, else in a copy."""
        in_place = "CPU" in gradient.device
        buffer = _memory(gradient) if in_place else np.array(gradient)
        status = self._context.status
        status.waiting = True
        self._transport.all_reduce(buffer)
        status.waiting = False
        return gradient if in_place else tf.constant(buffer)

    def _summed(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.array(vector, np.float64)
        self._transport.all_reduce(total)
        return total

    def agree(self, number: int) -> int:
        return number  # ranks meet at every step, however many steps a call takes

    def close(self) -> None:
        self._transport.close()


def _memory(tensor: tf.Tensor) -> NDArray[Any]:
    """The memory of a tensor that is ours alone; TensorFlow itself only lends it for reading."""
    lent = np.asarray(memoryview(tensor))
    return np.frombuffer(memoryview((ctypes.c_char * lent.nbytes).from_address(lent.ctypes.data)), lent.dtype)


def train(context: Context) -> None:
    """Meet the other ranks, then run the loop."""
    with context.events.phase("connect"), context.waiting():
        transport = connect(context)
    data = context.data
    with context.events.phase("build"):
        learner = AllReduce(context, Network(context.job, data), transport)
    loop.run(context, learner)
