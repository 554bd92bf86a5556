"""What a parameter server's chief hands out of a text: words, and what was remembered of those before them.

The text is cut into as many groups of rows as there are workers. A group's words must be read in order, so one closure
of it is under way at a time; its state comes back with the result and goes out with the group's next closure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.engines.tensorflow.feeds import ROWS, Rows, deal_words, evaluation_rows, training_rows
from velodrome.engines.tensorflow.language import LanguageNetwork
from velodrome.engines.tensorflow.parameter_server import ParameterServer
from velodrome.tasks.counts import Counts
from velodrome.tasks.text_schedule import TextSchedule
from velodrome.worker.context import Context
from velodrome.worker.learner import Part

#: Steps that a closure of an evaluation takes.
_EVALUATED = 50


class _Group:
    """Rows of a text: how far they were read, and what is remembered of it."""

    def __init__(self, rows: Rows, state: list[NDArray[Any]], unroll: int) -> None:
        self._rows, self.state, self._unroll = rows, state, unroll
        self.read, self.steps = 0, int(rows.inputs.shape[1]) // unroll

    def next(self, steps: int) -> Rows:
        """The words of the next steps."""
        first, last = self.read * self._unroll, (self.read + steps) * self._unroll
        self.read += steps
        inputs, targets, real = (values[:, first:last] for values in self._rows[:3])
        return Rows(inputs, targets, real, self._rows.batch)


class HandsText(ParameterServer):
    """Hands out the groups of a text."""

    _network: LanguageNetwork

    def __init__(self, context: Context, network: LanguageNetwork, strategy: Any, watch: PeerMonitor) -> None:
        super().__init__(context, network, strategy, watch)
        state = [tf.TensorSpec([None, units], network.dtype) for units in network.units for _ in range(2)]
        self._train = tf.function(self._train_steps, autograph=False, input_signature=[ROWS, state])
        self._count = tf.function(self._count_steps, autograph=False, input_signature=[ROWS, state])
        self._groups: list[_Group] = []
        self._under_way: set[int] = set()
        self._handed, self._each = 0, 0

    def _train_steps(self, rows: Rows, state: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """Counts, and the state after the last word."""
        def body(step: tf.Tensor, tally: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            seen = self._step(now, deal_words(rows, step, self._context.job.unroll))
            return step + 1, tally + seen.tally, *seen.after

        return tuple(self._over(rows, body, state))

    def _count_steps(self, rows: Rows, state: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        weights = self._layers(self._pull())

        def body(step: tf.Tensor, tally: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            seen = self._network.count(weights, now, deal_words(rows, step, self._context.job.unroll))
            return step + 1, tally + seen.tally, *seen.after

        return tuple(self._over(rows, body, state))

    def _over(
        self, rows: Rows, body: Callable[..., tuple[tf.Tensor, ...]], state: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """All steps of the rows: what they count, and the state after them."""
        steps = tf.shape(rows.inputs)[1] // self._context.job.unroll
        free = [tf.TensorShape([None, units]) for units in self._network.units for _ in range(2)]
        shapes = tf.TensorShape([]), tf.TensorShape([self._network.tally_size]), *free
        start = tf.constant(0), tf.zeros([self._network.tally_size], tf.float64), *state
        _, *after = tf.while_loop(lambda step, *_: step < steps, body, start, shape_invariants=shapes)
        return after

    def begin_epoch(self, schedule: TextSchedule) -> None:
        super().begin_epoch(schedule)
        text, groups = self._context.data.train, range(schedule.groups)
        self._groups = [self._group(training_rows(schedule.rows(text, number), schedule.batch)) for number in groups]
        self._handed, self._each = 0, self._steps_in_closure(schedule.steps)

    def _group(self, rows: Rows) -> _Group:
        return _Group(rows, self._network.fresh(int(rows.inputs.shape[0])), self._context.job.unroll)

    def _hand_out(self, last: int) -> None:
        """A closure for every group that waits for one, as long as fewer than `last` steps were handed out."""
        waiting = sorted(set(range(len(self._groups))) - self._under_way, key=lambda number: self._groups[number].read)
        for number in waiting:
            group = self._groups[number]
            steps = min(self._each, last - self._handed, group.steps - group.read)
            if steps > 0:
                self._closures.schedule(number, self._train, group.next(steps), _tensors(group.state))
                self._under_way.add(number)
                self._handed += steps

    def _take_back(self, left: int) -> list[NDArray[Any]]:
        """What came back, after its state was taken over."""
        tallies = []
        for number, (tally, *state) in self._closures.results(left):
            self._groups[number].state = state
            self._under_way.discard(number)
            tallies.append(tally)
        return tallies

    def _counts_of(self, tallies: list[NDArray[Any]]) -> Counts:
        return sum((self._network.counts(tally) for tally in tallies), Counts())

    def _until(self, last: int) -> Counts:
        counts = Counts()
        self._hand_out(last)
        while self._handed < last and self._under_way:
            counts += self._counts_of(self._take_back(len(self._under_way) - 1))
            self._hand_out(last)
        return counts

    def train(self, first: int, last: int) -> Counts:
        self._asked = last
        # What is less than a closure is left to the next call, or to the end of the epoch.
        return self._until(last - last % self._each)

    def _rest(self) -> Counts:
        counts = self._until(self._asked)
        return counts + self._counts_of(self._take_back(0))

    def evaluate(self, part: Part) -> Counts:
        workers, text = self._context.job.workers, getattr(self._context.data, part)
        rows = [evaluation_rows(text, rank, workers, self._context.job.unroll) for rank in range(workers)]
        self._groups = [self._group(mine) for mine in rows]
        counts, waiting = Counts(), list(range(workers))
        while waiting:
            for number in waiting:
                group = self._groups[number]
                words = group.next(min(_EVALUATED, group.steps - group.read))
                self._closures.schedule(number, self._count, words, _tensors(group.state))
                self._under_way.add(number)
            before = set(self._under_way)
            counts += self._counts_of(self._take_back(len(before) - 1))
            came = before - self._under_way
            waiting = [number for number in came if self._groups[number].read < self._groups[number].steps]
            if not waiting and self._under_way:
                counts += self._counts_of(self._take_back(0))
                waiting = [number for number, group in enumerate(self._groups) if group.read < group.steps]
        return counts


def _tensors(state: list[NDArray[Any]]) -> list[tf.Tensor]:
    return [tf.constant(np.asarray(value)) for value in state]
