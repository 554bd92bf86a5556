"""Which closures the chief of a parameter-server job schedules: over examples by their indices, or over rows of a text.

A closure over examples carries indices; `worker_data.py` brings the examples to the workers. It has at most twenty
steps. For a small network in a long job its graph holds them unrolled: TensorFlow requests weights before they are
needed, and spends no message on a loop. On two cores this is worth a quarter to a third of the throughput of
`dense-300-100`. Larger networks use a loop, because unrolled graphs take long to build.

The text is split into as many groups of rows as there are workers. A group's words must be read in order, so one
closure of it is pending at a time; its state is returned with the counts and sent with the group's next closure. A
network without state is scheduled in the same way, and its state is empty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.catalog.models import UNROLL
from velodrome.engines.tensorflow.feed import (
    EVALUATION_BATCH,
    PARTS,
    ROWS,
    Constants,
    Rows,
    Source,
    constants_of,
    evaluation_rows,
    gather,
    slice_words,
    training_rows,
)
from velodrome.engines.tensorflow.flat import Batch, StepResult
from velodrome.engines.tensorflow.network import SEED_STRIDE, Network
from velodrome.engines.tensorflow.networks import TextNetwork
from velodrome.engines.tensorflow.strategies.cluster import PeerMonitor
from velodrome.engines.tensorflow.strategies.parameter_server import ParameterServer
from velodrome.engines.tensorflow.strategies.worker_data import WorkerData, examples_in, reads_itself
from velodrome.tasks.base import Counts
from velodrome.tasks.correctness_bits import Evaluated
from velodrome.tasks.schedule import Schedule, TextSchedule
from velodrome.training.context import Context
from velodrome.training.learner import Part, State

#: The steps of a closure are unrolled in its graph for networks of at most `_SMALL_NETWORK` weight tensors in jobs of
#: at least `_LONG_JOB` steps: weights are then requested early, and no message is sent for a loop. It takes a second or
#: two to build such a graph.
_SMALL_NETWORK = 24
_LONG_JOB = 600
#: At the end of an epoch, a closure that takes longer than this (seconds) is split into `_SMALLER` parts.
_LONG_CLOSURE, _SMALLER = 0.4, 4
#: Most bytes of inputs that are sent along with a closure of several steps.
_SENT_BYTES = 16 << 20


def balanced_size(steps: int, epoch: int, most: int, workers: int) -> int:
    """Steps per closure, at most `most`, with which workers end the epochs of a job together and few steps are left.

    A closure costs about half a step of its own, and a closure of one step about twice its time.
    """

    def seconds(length: int, size: int) -> float:
        return -(-(length // size) // workers) * (size + 0.5) + length % size * 2 / workers

    epochs, rest = divmod(steps, epoch)
    sizes = range(max(1, most * 3 // 4), most + 1)
    return min(sizes, key=lambda size: epochs * seconds(epoch, size) + seconds(rest, size))


class _OfClosure(NamedTuple):
    """What a closure found out about some examples."""

    counts: NDArray[np.float64]
    right: NDArray[np.uint8]
    confusion: NDArray[np.float64]
    scores: NDArray[np.float64]


class IndexDispatcher(ParameterServer):
    """Any closure may run on any worker, and one is always queued for the next worker that is free."""

    _network: Network

    def __init__(self, context: Context, network: Network, strategy: Any, monitor: PeerMonitor) -> None:
        super().__init__(context, network, strategy, monitor)
        self._data = WorkerData(self._closures.coordinator, context.data, published=reads_itself(context))
        self._constants = {part: constants_of(context.task, context.data, part) for part in PARTS}
        # Closures differ in how many examples are sent along, which is no reason to retrace.
        self._train = tf.function(self._train_steps, autograph=False, reduce_retracing=True)
        self._count = tf.function(self._count_examples, autograph=False, reduce_retracing=True)
        self._schedule: Schedule
        self._scheduled, self._closure_steps, self._end, self._seed_offset, self._unrolled = 0, 0, 0, 0, False
        self._arrivals: list[float] = []

    def _train_steps(self, source: Any, order: tf.Tensor, unrolled: int) -> tuple[tf.Tensor]:
        """Train several steps; their counts.

        `order` holds the batch size, the number of examples, an offset for the closure's random numbers, and the
        indices of the examples in `source`. `unrolled` is the number of steps to unroll; 0 for a loop.
        """
        size, examples, seed_offset, indices = order[0], order[1], order[2], order[3:]
        tensors = examples_in(source)
        states = [
            value + tf.cast(tf.stack([seed_offset * SEED_STRIDE, 0]), value.dtype) if random else value
            for value, random in zip(self._read_statistics(), self._network.random_states(), strict=True)
        ]

        def body(first: tf.Tensor, counts: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            last = tf.minimum(first + size, examples)
            batch = Batch(*gather(tensors, indices[first:last]), last - first, last - first, self._constants["train"])
            result = self._step(now, batch)
            return last, counts + result.counts, *result.statistics

        nothing = tf.zeros([self._network.counts_size], tf.float64)
        done: tuple[tf.Tensor, ...] = tf.constant(0, tf.int64), nothing, *states
        if not unrolled:
            done = tf.while_loop(lambda first, *_: first < examples, body, done)
        for _ in range(unrolled):
            done = body(*done)
        _, counts, *states = done
        for variable, value, random in zip(self._statistics, states, self._network.random_states(), strict=True):
            if not random:
                variable.assign(value)
        return (counts,)

    def _read_statistics(self) -> list[tf.Tensor]:
        return [variable.read_value() for variable in self._statistics]

    def _count_examples(self, source: Any, indices: tf.Tensor, constants: Constants) -> tuple[tf.Tensor, ...]:
        """The counts of some examples, and what `_OfClosure` names, empty where there is none."""
        number = tf.size(indices, tf.int64)
        batch = Batch(*gather(examples_in(source), indices), number, number, constants)
        result = self._network.count(self._layers(), self._read_statistics(), batch)
        nothing = tf.zeros([0], tf.float64)
        others = (nothing if value is None else value for value in (result.confusion, result.scores))
        return (result.counts, nothing if result.right is None else tf.cast(result.right, tf.uint8), *others)

    def begin_epoch(self, schedule: Schedule) -> None:
        super().begin_epoch(schedule)
        self._schedule, self._scheduled, self._data.epoch = schedule, 0, self.epoch
        self._closure_steps = self._steps_per_closure(schedule.steps)
        if not self._data.is_kept("train"):
            data = self._context.data
            bytes_of_step = Source(data.train).input_bytes * schedule.batch_sizes[0]
            self._closure_steps = max(1, min(self._closure_steps, _SENT_BYTES // bytes_of_step))
        steps = int(min(schedule.steps * self._context.job.epochs, self._context.job.steps or math.inf))
        self._unrolled = not self._stock and steps >= _LONG_JOB and len(self._network.shapes) <= _SMALL_NETWORK
        if self._unrolled:
            self._closure_steps = balanced_size(steps, schedule.steps, self._closure_steps, self._context.job.workers)
        left = (self._context.job.steps or math.inf) - self._context.status.steps
        self._end, self._arrivals = int(min(schedule.steps, left)), []

    def _next_size(self) -> int:
        """Steps of the next closure: fewer at the end if they take long, so that workers end the epoch together.

        An unrolled graph has a fixed number of steps. Steps that do not fill such closures are scheduled one by one,
        first: so every worker has prepared both graphs when throughput is measured.
        """
        left = self._end - self._scheduled
        if self._unrolled and self._scheduled < self._end % self._closure_steps:
            return 1
        size = self._closure_steps
        if left <= size * self._context.job.workers and self._closure_seconds() >= _LONG_CLOSURE:
            size = max(1, size // _SMALLER)
        return 1 if self._unrolled and size > left else size

    def _closure_seconds(self) -> float:
        """How long a worker takes for a closure of this epoch; 0 before two have been measured."""
        ends = self._arrivals
        return (ends[-1] - ends[0]) / (len(ends) - 1) * self._context.job.workers if len(ends) > 1 else 0.0

    def _schedule_closure(self, last: int) -> None:
        """Schedule one closure: the next steps up to, not including, `last`."""
        size = self._schedule.batch_sizes[0]
        indices = self._schedule.indices[0][self._scheduled * size : last * size]
        unrolled, examples = last - self._scheduled if self._unrolled else 0, len(indices)
        # An epoch's last batch may be smaller: it is padded, so that no graph is made for it alone.
        indices = np.append(indices, np.repeat(indices[-1:], max(0, unrolled * size - examples)))
        self._seed_offset += 1
        source, positions = self._data.source("train", indices)
        order = tf.constant(np.concatenate([[size, examples, self._seed_offset], positions]), tf.int64)
        self._closures.schedule(None, self._train, source, order, unrolled)
        self._scheduled = last

    def _collect(self, left: int) -> Counts:
        results = self._closures.results(left)
        self._arrivals += [time.monotonic()] * len(results)
        return sum((self._network.counts(counts) for _, (counts,) in results), Counts())

    def train(self, first: int, last: int) -> Counts:
        counts, self._requested = Counts(), last
        while self._scheduled + (size := self._next_size()) <= last:
            counts += self._collect(self._closures.capacity)
            self._schedule_closure(self._scheduled + size)
        return counts + self._collect(self._closures.capacity)

    def _finish_steps(self) -> Counts:
        counts = Counts()
        while self._scheduled < self._requested:
            counts += self._collect(self._closures.capacity)
            self._schedule_closure(self._scheduled + 1 if self._unrolled else self._requested)
        return counts + self._collect(0)

    def evaluate(self, part: Part) -> Counts:
        examples, results = len(getattr(self._context.data, part)), []
        for first in range(0, examples, EVALUATION_BATCH):
            results += self._closures.results(self._closures.capacity)
            source, positions = self._data.source(part, np.arange(first, min(first + EVALUATION_BATCH, examples)))
            arguments = source, tf.constant(positions, tf.int64), self._constants[part]
            self._closures.schedule(first, self._count, *arguments)
        results += self._closures.results(0)
        in_order = [_OfClosure(*values) for _, values in sorted(results, key=lambda result: result[0])]
        counts = sum((self._network.counts(each.counts) for each in in_order), Counts())
        mine = Evaluated(
            counts, np.sum([each.confusion for each in in_order], axis=0) if self._network.confusion_classes else None,
            np.concatenate([each.right for each in in_order]).astype(np.bool_) if self._network.has_answers else None,
            np.concatenate([each.scores.ravel() for each in in_order]) if self._network.score_size else None,
        )
        return self.sum_evaluated(mine, part, self._context, lambda whole: whole)

    def load(self, state: State) -> None:
        super().load(state)
        self._seed_offset = int(state["iterations"])


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
        return self._loop(rows, state, self._step)

    def _count_steps(self, rows: Rows, state: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        weights = self._layers()
        return self._loop(rows, state, lambda now, batch: self._network.count(weights, now, batch))

    def _loop(
        self, rows: Rows, state: list[tf.Tensor], compute: Callable[[Sequence[tf.Tensor], Batch], StepResult]
    ) -> tuple[tf.Tensor, ...]:
        """All steps of the rows: their counts, and the state after the last word."""
        unroll, size = UNROLL.of(self._context.job), self._network.counts_size

        def body(step: tf.Tensor, counts: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            result = compute(now, slice_words(rows, step, unroll))
            return step + 1, counts + result.counts, *result.statistics

        steps = tf.shape(rows.inputs)[1] // unroll
        free = [tf.TensorShape([None, units]) for units in self._network.state_units]
        shapes = tf.TensorShape([]), tf.TensorShape([size]), *free
        start = tf.constant(0), tf.zeros([size], tf.float64), *state
        _, *after = tf.while_loop(lambda step, *_: step < steps, body, start, shape_invariants=shapes)
        return tuple(after)

    def begin_epoch(self, schedule: TextSchedule) -> None:
        super().begin_epoch(schedule)
        text, groups = self._context.data.train, range(schedule.readers)
        self._groups = [self._group(training_rows(schedule.rows(text, number), schedule.batch)) for number in groups]
        self._scheduled, self._closure_steps = 0, self._steps_per_closure(schedule.steps)

    def _group(self, rows: Rows) -> _Group:
        return _Group(rows, self._network.initial_state(int(rows.inputs.shape[0])), UNROLL.of(self._context.job))

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
        return self._until(self._requested) + self._collect(0)

    def evaluate(self, part: Part) -> Counts:
        workers, text = self._context.job.workers, getattr(self._context.data, part)
        rows = [evaluation_rows(text, rank, workers, UNROLL.of(self._context.job)) for rank in range(workers)]
        self._groups = [self._group(mine) for mine in rows]
        counts = Counts()
        while True:
            for number, group in enumerate(self._groups):
                if number not in self._pending and group.read < group.steps:
                    words = group.next(min(_EVALUATION_STEPS, group.steps - group.read))
                    self._closures.schedule(number, self._count, words, _tensors(group.state))
                    self._pending.add(number)
            if not self._pending:
                return counts
            counts += self._collect(len(self._pending) - 1)


def _tensors(state: list[NDArray[Any]]) -> list[tf.Tensor]:
    return [tf.constant(np.asarray(value)) for value in state]
