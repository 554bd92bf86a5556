"""Asynchronous training with TensorFlow's parameter servers: the chief hands out closures, workers pull and push.

Weights live on the servers, large ones in several parts. A closure is a few steps on one worker; it brings its
examples along and returns its counts, so that counts stay exact when a lost worker's closure runs again elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.closures import Closures
from velodrome.engines.tensorflow.cluster import Watch
from velodrome.engines.tensorflow.deck import EVALUATION_BATCH
from velodrome.engines.tensorflow.network import Network
from velodrome.engines.tensorflow.optimizers import optimizer_of
from velodrome.engines.tensorflow.state import pack_state, unpack_state
from velodrome.worker.context import Context
from velodrome.worker.counts import Counts
from velodrome.worker.learner import Learner, Part, State
from velodrome.worker.schedule import Schedule

#: Steps in a closure: enough that handing out costs little, few enough that the last ones of an epoch end together.
STEPS = 10
#: Closures of an epoch that each worker gets at least, as far as there are steps.
SHARES = 4
#: Weights smaller than this are not split over servers.
SMALLEST_PART = 256 * 2**10
_SEED_STRIDE = 7919


def partitioner(servers: int) -> Any:
    """Splits what is large, into at most as many parts as there are servers."""
    return tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=SMALLEST_PART, max_shards=servers
    )


def make_strategy(servers: int) -> Any:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner(servers))


def _parts(variable: Any) -> list[Any]:
    """The pieces of a variable that is split over servers, or itself."""
    return list(getattr(variable, "variables", [variable]))


class ParameterServer(Learner):
    """A network whose weights live on servers, as the chief sees it."""

    def __init__(self, context: Context, network: Network, strategy: Any, watch: Watch) -> None:
        self._context, self._network = context, network
        self._optimizer, self._rate = optimizer_of(context.job), context.job.rate
        self.parameters = network.parameters
        servers = [f"/job:ps/replica:0/task:{rank}/device:CPU:0" for rank in range(context.job.servers)]
        with strategy.scope():
            weights = [tf.Variable(np.asarray(variable, context.job.dtype)) for variable in network.trainable]
        self._weights = [_parts(variable) for variable in weights]
        self._slots = [[self._slots_of(part) for part in parts] for parts in self._weights]
        with tf.device(servers[0]):
            self._iterations = tf.Variable(0, dtype=tf.int64)
        self._statistics = []
        for index, value in enumerate(network.initial_statistics(0)):
            with tf.device(servers[index % len(servers)]):
                self._statistics.append(tf.Variable(value))
        self._closures = Closures(tf.distribute.coordinator.ClusterCoordinator(strategy), watch, context)
        images = tf.TensorSpec([None, *network.shape], tf.uint8)
        labels, number = tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)
        given = [images, labels, number, number, tf.TensorSpec([], network.dtype)]
        self._train = tf.function(self._train_steps, autograph=False, input_signature=given)
        self._count = tf.function(self._count_examples, autograph=False, input_signature=[images, labels])
        self._schedule: Schedule
        self._handed, self._asked, self._batch, self._salt, self._epoch = 0, 0, 0, 0, 0
        self._stale = np.zeros(3)

    def _slots_of(self, part: Any) -> list[Any]:
        with tf.device(part.device):
            return [tf.Variable(np.zeros(part.shape, self._context.job.dtype)) for _ in range(self._optimizer.slots)]

    def _join(self, pulled: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Each layer's weights from its parts."""
        return [parts[0] if len(parts) == 1 else tf.concat(parts, 0) for parts in pulled]

    def _pull(self) -> list[list[tf.Tensor]]:
        return [[part.read_value() for part in parts] for parts in self._weights]

    def _push(self, gradient: list[list[tf.Tensor]], rate: tf.Tensor) -> tf.Tensor:
        """Apply a gradient where the weights live; returns the number of updates then."""
        # Nothing else makes the count wait for the gradient, and counted early it would hide what others did meanwhile.
        computed = [piece for pieces in gradient for piece in pieces]
        with tf.control_dependencies(computed), tf.device(self._iterations.device):
            done = self._iterations.assign_add(1).read_value()
            powers = self._optimizer.powers(done)
        for parts, slots, pieces in zip(self._weights, self._slots, gradient, strict=True):
            for part, held, piece in zip(parts, slots, pieces, strict=True):
                with tf.device(part.device):
                    self._optimizer.apply(part.handle, [slot.handle for slot in held], piece, rate, powers)
        return done

    def _train_steps(
        self, images: tf.Tensor, labels: tf.Tensor, batch: tf.Tensor, salt: tf.Tensor, rate: tf.Tensor
    ) -> tf.Tensor:
        """Steps over the examples given; counts, then the sum and the largest of updates by others, and the steps."""
        examples = tf.cast(tf.size(labels), tf.int64)
        states = [
            value + tf.cast(tf.stack([salt * _SEED_STRIDE, 0]), value.dtype) if random else value
            for value, random in zip(self._read_statistics(), self._network.random_states(), strict=True)
        ]

        def body(first: tf.Tensor, seen: tf.Tensor, late: tf.Tensor, *now: tf.Tensor) -> tuple[tf.Tensor, ...]:
            last = tf.minimum(first + batch, examples)
            before = self._iterations.read_value()
            gradient, after, tally = self._network.gradient(
                self._pull(), self._join, now, images[first:last], labels[first:last], last - first, last - first
            )
            behind = tf.cast(self._push(gradient, rate) - before - 1, tf.float64)
            late = tf.stack([late[0] + behind, tf.maximum(late[1], behind), late[2] + 1.0])
            return last, seen + tally, late, *after

        zeros = tf.zeros([3], tf.float64)
        _, seen, late, *states = tf.while_loop(
            lambda first, *_: first < examples, body, (tf.constant(0, tf.int64), zeros, zeros, *states)
        )
        for variable, value, random in zip(self._statistics, states, self._network.random_states(), strict=True):
            if not random:
                variable.assign(value)
        return tf.concat([seen, late], 0)

    def _read_statistics(self) -> list[tf.Tensor]:
        return [variable.read_value() for variable in self._statistics]

    def _count_examples(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        weights = self._join(self._pull())
        return self._network.count(weights, self._read_statistics(), images, labels, tf.size(labels))

    def begin_epoch(self, schedule: Schedule) -> None:
        self._schedule, self._handed, self._asked = schedule, 0, 0
        self._batch = max(1, min(STEPS, schedule.steps // (SHARES * self._context.job.workers)))
        self._stale = np.zeros(3)
        self._epoch += 1

    def _hand_out(self, last: int) -> None:
        """One closure: the steps from where we are up to, not including, `last`."""
        size, data = self._schedule.sizes[0], self._context.data.train
        indices = self._schedule.streams[0][self._handed * size : last * size]
        self._salt += 1
        self._closures.schedule(
            self._train, tf.constant(data.images[indices]), tf.constant(data.labels[indices], tf.int64),
            tf.constant(size, tf.int64), tf.constant(self._salt, tf.int64),
            tf.constant(self._rate, self._network.dtype),
        )
        self._handed = last

    def _take(self, results: list[NDArray[np.float64]]) -> Counts:
        counts = Counts()
        for result in results:
            counts += Counts.of(result[:3])
            self._stale += [result[3], 0.0, result[5]]
            self._stale[1] = max(self._stale[1], result[4])
        return counts

    def set_rate(self, rate: float) -> None:
        self._rate = rate

    def train(self, first: int, last: int) -> Counts:
        counts, self._asked = Counts(), last
        while self._handed + self._batch <= last:
            counts += self._take(self._closures.results(self._closures.enough))
            self._hand_out(self._handed + self._batch)
        return counts + self._take(self._closures.results(self._closures.enough))

    def end_epoch(self) -> Counts:
        if self._handed < self._asked:
            self._hand_out(self._asked)
        counts = self._take(self._closures.results(0))
        total, most, steps = self._stale
        if steps:
            self._context.events.emit("staleness", epoch=self._epoch, mean=total / steps, max=most, updates=int(steps))
        return counts

    def average_statistics(self) -> None:
        """There is one copy of them, on the servers."""

    def evaluate(self, part: Part) -> Counts:
        data = getattr(self._context.data, part)
        results = []
        for first in range(0, len(data), EVALUATION_BATCH):
            chosen = slice(first, first + EVALUATION_BATCH)
            results += self._closures.results(self._closures.enough)
            self._closures.schedule(
                self._count, tf.constant(data.images[chosen]), tf.constant(data.labels[chosen], tf.int64)
            )
        results += self._closures.results(0)
        return sum((Counts.of(result) for result in results), Counts())

    def total(self, counts: Counts) -> Counts:
        return counts

    def _flat(self, held: list[list[Any]]) -> NDArray[Any]:
        return self._network.pack([part.numpy() for parts in held for part in parts])

    def _slot(self, index: int) -> list[list[Any]]:
        return [[slots[index] for slots in parts] for parts in self._slots]

    def state(self) -> State:
        slots = [self._flat(self._slot(index)) for index in range(self._optimizer.slots)]
        statistics = [variable.numpy() for variable in self._statistics]
        return pack_state(self._flat(self._weights), slots, statistics, int(self._iterations.numpy()))

    def load(self, state: State) -> None:
        weights, slots, statistics, iterations = unpack_state(state)
        held = [self._weights, *(self._slot(index) for index in range(self._optimizer.slots))]
        for variables, values in zip(held, [weights, *slots], strict=True):
            first = 0
            for part in (part for parts in variables for part in parts):
                size = int(np.prod(part.shape))
                part.assign(values[first : first + size].reshape(part.shape))
                first += size
        for variable, value in zip(self._statistics, statistics, strict=True):
            variable.assign(value)
        self._iterations.assign(iterations)
        self._salt = iterations

    def save(self, folder: Path) -> None:
        self._network.save(folder, self._flat(self._weights), [variable.numpy() for variable in self._statistics])
