"""Training over the replicas of a `tf.distribute` strategy: single, mirrored, central-storage, multi-worker-mirrored.

Weights and optimizer slots are flat buffers that the strategy distributes; statistics and counts belong to each replica
of this process. The gradient is summed over all replicas once a step, as one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import Batch, FlatModel, gradient_in_parts
from velodrome.engines.tensorflow.stock import KerasWeights
from velodrome.engines.tensorflow.tasks import feed_of
from velodrome.engines.tensorflow.weights import ReplicaWeights, with_total
from velodrome.models.checks import Generators, preserved
from velodrome.tasks import correctness_bits
from velodrome.tasks.base import Counts
from velodrome.tasks.schedule import evaluation_indices
from velodrome.training.context import Context
from velodrome.training.learner import Inspection, Learner, Part, State, gather

#: Steps of an evaluation in one call.
_EVALUATION_STEPS = 20


def traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """The graph of a function. A model that draws from Python's or NumPy's generators while it is traced draws the same
    numbers in every graph, however many a strategy needs."""
    with preserved():
        return tf.function(function, autograph=False).get_concrete_function(*arguments)


def for_each_step(first: tf.Tensor, last: tf.Tensor, function: Callable[[tf.Tensor], object]) -> None:
    """Call a function with each of the steps, in a graph."""

    def body(step: tf.Tensor) -> tuple[tf.Tensor]:
        function(step)
        return (step + 1,)

    tf.while_loop(lambda step: step < last, body, (first,))


class _Replica(NamedTuple):
    """What belongs to one replica of this process alone."""

    rank: int
    #: Statistics of the model, or the state of a stateful network.
    statistics: list[tf.Variable]
    counts: tf.Variable
    #: Of an evaluation: the confusion matrix and, for the replica's examples in order, which were right, and scores.
    confusion: tf.Variable
    right: tf.Variable
    scores: tf.Variable


class Replicas(Learner):
    """A network on the replicas that a strategy has in this process."""

    def __init__(
        self, context: Context, network: FlatModel, weights: ReplicaWeights | KerasWeights, strategy: Any,
        devices: Sequence[str | None],
    ) -> None:
        """`weights` were created for the network under the strategy."""
        self._context, self._network, self._weights, self._strategy = context, network, weights, strategy
        self.parameters, self.pixels = network.parameters, network.pixel_form
        self.implementation = network.implementation(context.strategy)
        self._world = context.job.workers
        self._several_processes = len(devices) < self._world
        self._ranks = range(context.rank, context.rank + len(devices))
        parts = (context.data.validation, context.data.test) if network.has_answers else ()
        evaluated = -(-max(map(len, parts), default=0) // self._world)
        self._replicas: list[_Replica] = []
        for rank, device in zip(self._ranks, devices, strict=True):
            with tf.device(device):
                self._replicas.append(_Replica(
                    rank, [self._statistic(value) for value in network.initial_statistics(rank)],
                    tf.Variable(np.zeros(network.counts_size)), tf.Variable(np.zeros(network.confusion_classes**2)),
                    tf.Variable(np.zeros(evaluated, np.float32)),
                    tf.Variable(np.zeros((evaluated, network.score_size))),
                ))
        self._iterations = 0
        self._feed = feed_of(context, self._ranks)
        self._train, self._count, self._sum = self._functions()

    def _statistic(self, value: NDArray[Any]) -> tf.Variable:
        """A statistic; the state of a stateful network has as many rows as the batch."""
        return tf.Variable(value, shape=[None, *value.shape[1:]] if self._network.stateful else value.shape)

    def _functions(self) -> tuple[Any, Any, Any]:
        """The functions that train, evaluate and sum over processes, traced now so that later calls only compute."""
        number, spec = tf.TensorSpec([], tf.int64), [self._feed.spec] * len(self._ranks)
        vector = tf.TensorSpec([None], tf.float64)
        with self._weights.tracing():
            train = traced(self._train_steps, number, number, number, spec)
        total = traced(self._sum_over_processes, vector) if self._several_processes else None
        return train, self._trace_evaluation(), total

    def _trace_evaluation(self) -> Any:
        """The traced function that evaluates."""
        number, spec = tf.TensorSpec([], tf.int64), [self._feed.spec] * len(self._ranks)
        return traced(self._count_steps, number, number, spec)

    def _replica(self) -> int:
        """Which replica of this process is being traced."""
        context = tf.distribute.get_replica_context()
        return 0 if len(self._ranks) == 1 else int(tf.get_static_value(context.replica_id_in_sync_group))

    def _train_steps(self, first: tf.Tensor, last: tf.Tensor, offset: tf.Tensor, inputs: list[Any]) -> None:
        for_each_step(first, last, lambda step: self._strategy.run(
            self._train_step, args=(step, offset + step + 1, inputs)
        ))

    def _train_step(self, step: tf.Tensor, iteration: tf.Tensor, inputs: list[Any]) -> None:
        replica = self._replica()
        batch = self._feed.batch(inputs[replica], step)
        self._weights.update(self._gradient(replica, batch), iteration)

    def _gradient(self, replica: int, batch: Batch) -> Any:
        """One replica's part of a step's gradient with respect to the weights; counts and statistics are updated."""
        own = self._replicas[replica]
        statistics = [value.read_value() for value in own.statistics]
        gradient, result = gradient_in_parts(
            self._network, self._weights.pull(), self._weights.layers, statistics, batch
        )
        own.counts.assign_add(result.counts)
        for variable, value in zip(own.statistics, result.statistics, strict=True):
            variable.assign(value)
        return with_total(gradient, result) if self._network.by_total else gradient

    def _count_steps(self, first: tf.Tensor, last: tf.Tensor, inputs: list[Any]) -> None:
        for_each_step(first, last, lambda step: self._strategy.run(self._count_step, args=(step, inputs)))

    def _count_step(self, step: tf.Tensor, inputs: list[Any]) -> None:
        replica = self._replica()
        own = self._replicas[replica]
        statistics = [value.read_value() for value in own.statistics]
        batch = self._feed.batch(inputs[replica], step)
        result = self._network.count(self._weights.evaluated_layers(), statistics, batch)
        if result.right is not None:
            # Examples come in the order of the replica's partition, so as many as were counted before come first.
            place = tf.cast(own.counts.read_value()[-2], tf.int64)
            right = tf.cast(result.right[: batch.real], tf.float32)
            places = place + tf.range(batch.real)
            tf.raw_ops.ResourceScatterUpdate(resource=own.right.handle, indices=places, updates=right)
            if result.scores is not None:
                scores = tf.cast(result.scores[: batch.real], tf.float64)
                tf.raw_ops.ResourceScatterUpdate(resource=own.scores.handle, indices=places, updates=scores)
        own.counts.assign_add(result.counts)
        if result.confusion is not None:
            own.confusion.assign_add(result.confusion)
        if self._network.stateful:
            for variable, value in zip(own.statistics, result.statistics, strict=True):
                variable.assign(value)

    def _sum_over_processes(self, vector: tf.Tensor) -> tf.Tensor:
        def reduce(mine: tf.Tensor) -> tf.Tensor:
            # The strategy sums on the device of a tensor, and an argument has none until it is copied.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(mine))

        return self._strategy.run(reduce, args=(vector,))

    def _sum_over_ranks(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of the processes' vectors."""
        return np.asarray(self._sum(tf.constant(vector, tf.float64))) if self._sum else vector

    def _take_counts(self) -> Counts:
        """The counts of this process since the last call."""
        counts = Counts()
        for replica in self._replicas:
            counts += self._network.counts(replica.counts.numpy())
            replica.counts.assign(np.zeros(self._network.counts_size))
        return counts

    def begin_epoch(self, schedule: Any) -> None:
        self._feed.epoch = self.epoch
        self._feed.begin_epoch(schedule)
        if self._network.stateful:
            self._reset_state(next(self._feed.windows(0, 1)).inputs)

    def _reset_state(self, inputs: list[Any]) -> None:
        """Set the state to that at the beginning of a text."""
        for replica, rows in zip(self._replicas, inputs, strict=True):
            state = self._network.initial_state(int(rows.inputs.shape[0]))
            for variable, value in zip(replica.statistics, state, strict=True):
                variable.assign(value)

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._weights.set_rates(rates, self._iterations)

    def train(self, first: int, last: int) -> Counts:
        for window in self._feed.windows(first, last):
            number = [tf.constant(value, tf.int64) for value in (*window[:2], self._iterations - window.first)]
            with self._waiting():
                self._train(*number, window.inputs)
            self._iterations += window.last - window.first
        with self._waiting():
            return self._take_counts()

    def inspect(self, step: int, weight_size: int) -> Inspection:
        self.train(step, step + 1)
        layers, activations = self._network.layer_rows()
        weights = self.parameters * self._network.dtype.size
        statistics = sum(np.asarray(value).nbytes for value in self._replicas[0].statistics)
        slots = sum(values.nbytes for values in self._weights.values()[1])
        return Inspection(weights + statistics, weights, slots, activations, layers)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around steps whose gradients TensorFlow sums over processes: a process may wait in them for another."""
        self._context.status.waiting = self._several_processes
        try:
            yield
        finally:
            self._context.status.waiting = False

    def agree(self, number: int) -> int:
        return round(float(self._sum_over_ranks(np.array([number if self._context.rank == 0 else 0.0]))[0]))

    def average_statistics(self) -> None:
        for index in range(len(self._replicas[0].statistics)):
            if not self._network.is_averaged(index):
                continue
            held = [replica.statistics[index] for replica in self._replicas]
            mine = np.sum([np.asarray(variable, np.float64) for variable in held], axis=0)
            mean = self._sum_over_ranks(mine.ravel()).reshape(mine.shape) / self._world
            for variable in held:
                variable.assign(tf.cast(mean, variable.dtype))

    def evaluate(self, part: Part) -> Counts:
        for number, window in enumerate(self._feed.evaluation(part)):
            if self._network.stateful and number == 0:
                self._reset_state(window.inputs)
            # In calls of a few steps, so that a long evaluation shows progress. No process waits in them.
            for first in range(window.first, window.last, _EVALUATION_STEPS):
                last = min(first + _EVALUATION_STEPS, window.last)
                self._count(tf.constant(first, tf.int64), tf.constant(last, tf.int64), window.inputs)
                self._context.status.seen += last - first
        confusion = np.sum([replica.confusion.numpy() for replica in self._replicas], axis=0)
        for replica in self._replicas:
            replica.confusion.assign(np.zeros_like(confusion))
        has_answers = part == "test" and self._network.has_answers
        right = self._own_answers() if has_answers else np.zeros(0, np.bool_)
        parts = [self._take_counts().vector(self._network.counted), confusion, self._own_scores(part),
                 correctness_bits.to_vector(right)]
        ends = np.cumsum([len(each) for each in parts])[:-1]
        counts, confusion, scores, packed = np.split(self._sum_over_ranks(np.concatenate(parts)), ends)
        if classes := self._network.confusion_classes:
            self.confusion = np.rint(confusion).astype(np.int64).reshape(classes, classes)
        if has_answers:
            self.answers = correctness_bits.from_vector(packed, len(right))
        return self._network.with_scores(part, self._network.counts(counts), scores)

    def _own_answers(self) -> NDArray[np.bool_]:
        """For every example of the test set, whether a replica of this process has just classified it correctly."""
        whole = np.zeros(len(self._context.data.test), np.bool_)
        for replica in self._replicas:
            mine = evaluation_indices(len(whole), replica.rank, self._world)
            whole[mine] = replica.right.numpy()[: len(mine)] > 0
        return whole

    def _own_scores(self, part: Part) -> NDArray[np.float64]:
        """For every example of a part, the scores that a replica of this process has just computed, or zeros."""
        size = self._network.score_size
        whole = np.zeros((len(getattr(self._context.data, part)) if size else 0, size))
        for replica in self._replicas:
            mine = evaluation_indices(len(whole), replica.rank, self._world)
            whole[mine] = replica.scores.numpy()[: len(mine)]
        return whole.ravel()

    def total(self, counts: Counts) -> Counts:
        return self._network.counts(self._sum_over_ranks(counts.vector(self._network.counted)))

    def generators(self) -> Generators:
        return super().generators() | self._network.generators()

    def gather(self, data: bytes) -> list[bytes]:
        if not self._several_processes:
            return [data]
        return gather(data, self._context.rank, self._world, self._sum_over_ranks)

    def state(self) -> State:
        return self._weights.state(self._saved_statistics(), self._iterations)

    def _saved_statistics(self) -> list[NDArray[Any]]:
        """The statistics for checkpoint and model; a state is of no use to the next epoch."""
        return [] if self._network.stateful else [value.numpy() for value in self._replicas[0].statistics]

    def load(self, state: State) -> None:
        statistics, self._iterations = self._weights.load(state)
        for replica in [] if self._network.stateful else self._replicas:
            values = self._network.statistics_for_rank(statistics, replica.rank)
            for variable, value in zip(replica.statistics, values, strict=True):
                variable.assign(value)

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        return self._network.check_saving(folder)

    def save(self, folder: Path) -> None:
        self._network.save(folder, self._weights.saved(), self._saved_statistics())

    def close(self) -> None:
        """Two barriers: after the first all processes are done, and one that leaves the second early does no harm."""
        self._sum_over_ranks(np.zeros(1))
        try:
            self._sum_over_ranks(np.zeros(1))
        except tf.errors.OpError:
            return
