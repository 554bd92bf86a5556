"""What a parameter server's chief hands out of images: numbers of examples, looked up in the worker's own copy.

Of a data set that is larger than memory no worker has a copy: there the chief sends the examples along.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from velodrome.data.gather import Gather
from velodrome.data.splits import Part as Examples
from velodrome.engines.tensorflow import worker_data as nearby
from velodrome.engines.tensorflow.batches import EVALUATION_BATCH, Pixels
from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.engines.tensorflow.flat import Batch, FlatModel
from velodrome.engines.tensorflow.parameter_server import ParameterServer
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import Indices, Schedule
from velodrome.worker.context import Context
from velodrome.worker.learner import Part, State

_SEED_STRIDE = 7919
#: A graph holds the steps of a closure one after the other, without a loop, if the network has at most so many weight
#: tensors and the job at least so many steps: what is sent is then asked for early, and no word goes around for a loop,
#: but a graph so long takes a second or two to build.
_SMALL_NETWORK = 24
_LONG_JOB = 600
#: A closure of more seconds than this is worth dividing by so much at the end of an epoch.
_LONG_CLOSURE, _SMALLER = 0.4, 4
#: Most bytes of images that go along with a closure, as far as one step does not need more.
_SENT_BYTES = 16 << 20


def even_size(steps: int, epoch: int, most: int, workers: int) -> int:
    """Steps of a closure, at most so many, with which workers end the epochs of a job together and few steps are left.

    A closure costs about half a step of its own, and a step that is handed out alone about twice its time.
    """

    def seconds(length: int, size: int) -> float:
        return -(-(length // size) // workers) * (size + 0.5) + length % size * 2 / workers

    epochs, rest = divmod(steps, epoch)
    sizes = range(max(1, most * 3 // 4), most + 1)
    return min(sizes, key=lambda size: epochs * seconds(epoch, size) + seconds(rest, size))


class HandsImages(ParameterServer):
    """Any closure may run on any worker, and there is always one waiting for who is free."""

    def __init__(self, context: Context, network: FlatModel, strategy: Any, watch: PeerMonitor) -> None:
        super().__init__(context, network, strategy, watch)
        self._copies: dict[str, Any] = {}
        self._gathers: dict[str, Gather] = {}
        # Sent examples differ in number from closure to closure, which is no reason to trace anew.
        self._train = tf.function(self._train_steps, autograph=False, reduce_retracing=True)
        self._count = tf.function(self._count_examples, autograph=False, reduce_retracing=True)
        self._schedule: Schedule
        self._handed, self._each, self._end, self._salt, self._straight = 0, 0, 0, 0, False
        self._arrivals: list[float] = []

    def _give(self, part: str, indices: Indices) -> tuple[Any, Indices]:
        """Where a worker finds examples, and their numbers there: in its copy of a part, or in what is sent along."""
        examples: Examples = getattr(self._context.data, part)
        if isinstance(examples.images, np.memmap):
            if part not in self._gathers:
                self._gathers[part] = Gather(examples.images)
            images, labels = self._gathers[part](indices), np.asarray(examples.labels).take(indices)
            return Pixels(tf.constant(images), tf.constant(labels, tf.int64)), np.arange(len(indices), dtype=np.int64)
        if part not in self._copies:
            make = tf.autograph.experimental.do_not_convert(partial(nearby.pixels, part, examples))
            self._copies[part] = iter(self._closures.coordinator.create_per_worker_dataset(make))
        return self._copies[part], indices

    def _given(self, given: Any) -> Pixels:
        return Pixels(*given) if isinstance(given, tuple) else next(given)

    def _train_steps(self, given: Any, order: tf.Tensor, straight: int) -> tuple[tf.Tensor]:
        """Steps over the examples that are numbered, and their counts.

        `order` holds the size of a batch, how many examples there are, what sets the closure's random numbers apart,
        and the examples' numbers. `straight` says how many steps these are, if the graph is to be made for so many;
        else it loops.
        """
        size, examples, salt, indices = order[0], order[1], order[2], order[3:]
        pixels = self._given(given)
        states = [
            value + tf.cast(tf.stack([salt * _SEED_STRIDE, 0]), value.dtype) if random else value
            for value, random in zip(self._read_statistics(), self._network.random_states(), strict=True)
        ]

        def body(first: tf.Tensor, tally: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            last = tf.minimum(first + size, examples)
            mine = indices[first:last]
            batch = Batch(tf.gather(pixels.images, mine), tf.gather(pixels.labels, mine), last - first, last - first)
            seen = self._step(now, batch)
            return last, tally + seen.tally, *seen.after

        nothing = tf.zeros([self._network.tally_size], tf.float64)
        done: tuple[tf.Tensor, ...] = tf.constant(0, tf.int64), nothing, *states
        if not straight:
            done = tf.while_loop(lambda first, *_: first < examples, body, done)
        for _ in range(straight):
            done = body(*done)
        _, tally, *states = done
        for variable, value, random in zip(self._statistics, states, self._network.random_states(), strict=True):
            if not random:
                variable.assign(value)
        return (tally,)

    def _read_statistics(self) -> list[tf.Tensor]:
        return [variable.read_value() for variable in self._statistics]

    def _count_examples(self, given: Any, indices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        pixels, number = self._given(given), tf.size(indices, tf.int64)
        batch = Batch(tf.gather(pixels.images, indices), tf.gather(pixels.labels, indices), number, number)
        seen = self._network.count(self._layers(self._pull()), self._read_statistics(), batch)
        return (seen.tally,) if seen.confusion is None else (seen.tally, seen.confusion)

    def begin_epoch(self, schedule: Schedule) -> None:
        super().begin_epoch(schedule)
        self._schedule, self._handed = schedule, 0
        self._each = self._steps_in_closure(schedule.steps)
        images = self._context.data.train.images
        if isinstance(images, np.memmap):
            self._each = max(1, min(self._each, _SENT_BYTES // (images[:1].nbytes * schedule.batch_sizes[0])))
        steps = int(min(schedule.steps * self._context.job.epochs, self._context.job.steps or math.inf))
        self._straight = steps >= _LONG_JOB and len(self._network.shapes) <= _SMALL_NETWORK
        if self._straight:
            self._each = even_size(steps, schedule.steps, self._each, self._context.job.workers)
        left = (self._context.job.steps or math.inf) - self._context.status.steps
        self._end, self._arrivals = int(min(schedule.steps, left)), []

    def _next_size(self) -> int:
        """Steps of the next closure: if they take long, few at the end, so that nobody waits for the last one.

        A graph without a loop is made for one number of steps. What does not fill such closures goes out step by step,
        first: so every worker has prepared both graphs when the clock of throughput starts.
        """
        left = self._end - self._handed
        if self._straight and self._handed < self._end % self._each:
            return 1
        size = self._each
        if left <= size * self._context.job.workers and self._seconds_each() >= _LONG_CLOSURE:
            size = max(1, size // _SMALLER)
        return 1 if self._straight and size > left else size

    def _seconds_each(self) -> float:
        """How long a worker takes for a closure of this epoch; 0 while nobody knows."""
        came = self._arrivals
        return (came[-1] - came[0]) / (len(came) - 1) * self._context.job.workers if len(came) > 1 else 0.0

    def _hand_out(self, last: int) -> None:
        """One closure: the steps from where we are up to, not including, `last`."""
        size = self._schedule.batch_sizes[0]
        indices = self._schedule.indices[0][self._handed * size : last * size]
        straight, examples = last - self._handed if self._straight else 0, len(indices)
        # An epoch's last batch may be smaller: filled up, so that no graph is made for it alone.
        indices = np.append(indices, np.repeat(indices[-1:], max(0, straight * size - examples)))
        self._salt += 1
        given, numbers = self._give("train", indices)
        order = tf.constant(np.concatenate([[size, examples, self._salt], numbers]), tf.int64)
        self._closures.schedule(None, self._train, given, order, straight)
        self._handed = last

    def _taken(self, left: int) -> Counts:
        results = self._closures.results(left)
        self._arrivals += [time.monotonic()] * len(results)
        return sum((self._network.counts(tally) for _, (tally,) in results), Counts())

    def train(self, first: int, last: int) -> Counts:
        counts, self._asked = Counts(), last
        while self._handed + (size := self._next_size()) <= last:
            counts += self._taken(self._closures.enough)
            self._hand_out(self._handed + size)
        return counts + self._taken(self._closures.enough)

    def _rest(self) -> Counts:
        counts = Counts()
        while self._handed < self._asked:
            counts += self._taken(self._closures.enough)
            self._hand_out(self._handed + 1 if self._straight else self._asked)
        return counts + self._taken(0)

    def evaluate(self, part: Part) -> Counts:
        examples, results = len(getattr(self._context.data, part)), []
        for first in range(0, examples, EVALUATION_BATCH):
            results += self._closures.results(self._closures.enough)
            given, numbers = self._give(part, np.arange(first, min(first + EVALUATION_BATCH, examples)))
            self._closures.schedule(None, self._count, given, tf.constant(numbers, tf.int64))
        results += self._closures.results(0)
        if classes := self._network.confused:
            counted = np.sum([confusion for _, (_, confusion) in results], axis=0)
            self.confusion = np.rint(counted).astype(np.int64).reshape(classes, classes)
        return sum((self._network.counts(answer[0]) for _, answer in results), Counts())

    def load(self, state: State) -> None:
        super().load(state)
        self._salt = int(state["iterations"])
