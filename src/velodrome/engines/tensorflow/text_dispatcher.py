"""Schedules closures over a text: each carries words, and the state of the network after the words before them.

The text is split into as many groups of rows as there are workers. A group's words must be read in order, so one
closure of it is pending at a time; its state is returned with the counts and sent with the group's next closure. A
network without state is scheduled in the same way, and its state is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.engines.tensorflow.feeds import ROWS, Rows, evaluation_rows, slice_words, training_rows
from velodrome.engines.tensorflow.parameter_server import ParameterServer
from velodrome.engines.tensorflow.text_network import TextNetwork
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import TextSchedule
from velodrome.worker.context import Context
from velodrome.worker.learner import Part

#: Steps that a closure of an evaluation takes.
_EVALUATION_STEPS = 50


class _Group:
    """Rows of a text: how far they were read, and the state after that."""

    def __init__(self, rows: Rows, state: list[NDArray[Any]], unroll: int) -> None:
        self._rows, self.state, self._unroll = rows, state, unroll
        self.read, self.steps = 0, int(rows.inputs.shape[1]) // unroll

    def next(self, steps: int) -> Rows:
        """The words of the next steps."""
        first, last = self.read * self._unroll, (self.read + steps) * self._unroll
        self.read += steps
        inputs, targets, real = (values[:, first:last] for values in self._rows[:3])
        return Rows(inputs, targets, real, self._rows.batch)


class TextDispatcher(ParameterServer):
    """Schedules the groups of a text."""

    _network: TextNetwork

    def __init__(self, context: Context, network: TextNetwork, strategy: Any, monitor: PeerMonitor) -> None:
        super().__init__(context, network, strategy, monitor)
        state = [tf.TensorSpec([None, units], network.dtype) for units in network.state_units]
        self._train = tf.function(self._train_steps, autograph=False, input_signature=[ROWS, state])
        self._count = tf.function(self._count_steps, autograph=False, input_signature=[ROWS, state])
        self._groups: list[_Group] = []
        self._pending: set[int] = set()
        self._scheduled, self._closure_steps = 0, 0

    def _train_steps(self, rows: Rows, state: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """Counts, and the state after the last word."""
        def body(step: tf.Tensor, counts: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            result = self._step(now, slice_words(rows, step, self._context.job.unroll))
            return step + 1, counts + result.counts, *result.statistics

        return tuple(self._loop(rows, body, state))

    def _count_steps(self, rows: Rows, state: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        weights = self._layers()

        def body(step: tf.Tensor, counts: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            result = self._network.count(weights, now, slice_words(rows, step, self._context.job.unroll))
            return step + 1, counts + result.counts, *result.statistics

        return tuple(self._loop(rows, body, state))

    def _loop(
        self, rows: Rows, body: Callable[..., tuple[tf.Tensor, ...]], state: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """All steps of the rows: their counts, and the state after them."""
        steps = tf.shape(rows.inputs)[1] // self._context.job.unroll
        free = [tf.TensorShape([None, units]) for units in self._network.state_units]
        shapes = tf.TensorShape([]), tf.TensorShape([self._network.counts_size]), *free
        start = tf.constant(0), tf.zeros([self._network.counts_size], tf.float64), *state
        _, *after = tf.while_loop(lambda step, *_: step < steps, body, start, shape_invariants=shapes)
        return after

    def begin_epoch(self, schedule: TextSchedule) -> None:
        super().begin_epoch(schedule)
        text, groups = self._context.data.train, range(schedule.groups)
        self._groups = [self._group(training_rows(schedule.rows(text, number), schedule.batch)) for number in groups]
        self._scheduled, self._closure_steps = 0, self._steps_per_closure(schedule.steps)

    def _group(self, rows: Rows) -> _Group:
        return _Group(rows, self._network.initial_state(int(rows.inputs.shape[0])), self._context.job.unroll)

    def _schedule_closures(self, last: int) -> None:
        """Schedule a closure for every idle group, as long as fewer than `last` steps are scheduled."""
        waiting = sorted(set(range(len(self._groups))) - self._pending, key=lambda number: self._groups[number].read)
        for number in waiting:
            group = self._groups[number]
            steps = min(self._closure_steps, last - self._scheduled, group.steps - group.read)
            if steps > 0:
                self._closures.schedule(number, self._train, group.next(steps), _tensors(group.state))
                self._pending.add(number)
                self._scheduled += steps

    def _collect(self, left: int) -> Counts:
        """The counts of the results that arrived; their states are kept for the next closures."""
        total = Counts()
        for number, (counts, *state) in self._closures.results(left):
            self._groups[number].state = state
            self._pending.discard(number)
            total += self._network.counts(counts)
        return total

    def _until(self, last: int) -> Counts:
        counts = Counts()
        self._schedule_closures(last)
        while self._scheduled < last and self._pending:
            counts += self._collect(len(self._pending) - 1)
            self._schedule_closures(last)
        return counts

    def train(self, first: int, last: int) -> Counts:
        self._requested = last
        # What is less than a closure is left to the next call, or to the end of the epoch.
        return self._until(last - last % self._closure_steps)

    def _finish_steps(self) -> Counts:
        counts = self._until(self._requested)
        return counts + self._collect(0)

    def evaluate(self, part: Part) -> Counts:
        workers, text = self._context.job.workers, getattr(self._context.data, part)
        rows = [evaluation_rows(text, rank, workers, self._context.job.unroll) for rank in range(workers)]
        self._groups = [self._group(mine) for mine in rows]
        counts, waiting = Counts(), list(range(workers))
        while waiting:
            for number in waiting:
                group = self._groups[number]
                words = group.next(min(_EVALUATION_STEPS, group.steps - group.read))
                self._closures.schedule(number, self._count, words, _tensors(group.state))
                self._pending.add(number)
            before = set(self._pending)
            counts += self._collect(len(before) - 1)
            returned = before - self._pending
            waiting = [number for number in returned if self._groups[number].read < self._groups[number].steps]
            if not waiting and self._pending:
                counts += self._collect(0)
                waiting = [number for number, group in enumerate(self._groups) if group.read < group.steps]
        return counts


def _tensors(state: list[NDArray[Any]]) -> list[tf.Tensor]:
    return [tf.constant(np.asarray(value)) for value in state]
