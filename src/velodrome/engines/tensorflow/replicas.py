"""Training over the replicas of a `tf.distribute` strategy: single, mirrored, central-storage, multi-worker-mirrored.

Weights and optimizer slots are flat buffers that the strategy distributes; statistics and counts belong to each replica
of this process. The gradient is summed over all replicas once a step, as one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.accumulate import gradient_in_parts
from velodrome.engines.tensorflow.checkpoint_state import pack_state, unpack_state
from velodrome.engines.tensorflow.flat import Batch, FlatModel, clip_by_norm
from velodrome.engines.tensorflow.generators import generators_of
from velodrome.engines.tensorflow.optimizers import optimizer_of
from velodrome.engines.tensorflow.rates import GraphRates, steps_of_epoch
from velodrome.engines.tensorflow.tasks.base import count_scores, task_of_job
from velodrome.engines.tensorflow.totals import over_total, with_total
from velodrome.models.generators import Generators, preserved
from velodrome.tasks import correctness_bits
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import evaluation_indices
from velodrome.worker.context import Context
from velodrome.worker.learner import Inspection, Learner, Part, State
from velodrome.worker.transport_learner import gather

#: Steps of an evaluation in one call.
_EVALUATION_STEPS = 20


def traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """The graph of a function. A model that draws from Python's or NumPy's generators while it is traced draws the same
    numbers in every graph, however many a strategy needs."""
    with preserved():
        return tf.function(function, autograph=False).get_concrete_function(*arguments)


class Replicas(Learner):
    """A network on the replicas that a strategy has in this process."""

    def __init__(
        self, context: Context, network: FlatModel, strategy: Any, devices: Sequence[str | None], *,
        central: bool = False,
    ) -> None:
        self._context, self._network, self._strategy, self._central = context, network, strategy, central
        self.parameters, self.pixels = network.parameters, network.pixel_form
        self.implementation = network.implementation(context.strategy)
        self._world = context.job.workers
        self._several_processes = len(devices) < self._world
        self._ranks = range(context.rank, context.rank + len(devices))
        self._create_weights()
        self._statistics, self._counts, self._confusion, self._right, self._scores = [], [], [], [], []
        parts = (context.data.validation, context.data.test) if network.has_answers else ()
        evaluated = -(-max(map(len, parts), default=0) // self._world)
        for rank, device in zip(self._ranks, devices, strict=True):
            with tf.device(device):
                self._statistics.append([self._statistic(value) for value in network.initial_statistics(rank)])
                self._counts.append(tf.Variable(np.zeros(network.counts_size)))
                self._confusion.append(tf.Variable(np.zeros(network.confusion_classes**2)))
                self._right.append(tf.Variable(np.zeros(evaluated, np.float32)))
                self._scores.append(tf.Variable(np.zeros((evaluated, network.score_size))))
        self._iterations = 0
        self._feed = task_of_job(context).feed(context, self._ranks)
        self._train, self._count, self._sum = self._functions()

    def _create_weights(self) -> None:
        self._optimizer, initial = optimizer_of(self._context.job), self._network.weights()
        with self._strategy.scope():
            self._weights = tf.Variable(initial)
            self._slots = [tf.Variable(np.zeros_like(initial)) for _ in range(self._optimizer.slots)]
            #: The moving average of the weights, which is evaluated and saved in their place.
            self._average = None if self._context.job.ema is None else tf.Variable(initial)
        self._rates = GraphRates(self._context.job, self._network.dtype, steps_of_epoch(self._context))

    def _read_weights(self) -> tf.Tensor:
        """The buffer, as this replica sees it."""
        return tf.raw_ops.ReadVariableOp(resource=self._weights.handle, dtype=self._network.dtype)

    def _evaluated_layers(self) -> list[tf.Tensor]:
        """The weights of each layer that are evaluated, as this replica sees them."""
        if self._average is None:
            return self._network.layout.layers(self._read_weights())
        average = tf.raw_ops.ReadVariableOp(resource=self._average.handle, dtype=self._network.dtype)
        return self._network.layout.layers(average)

    def _statistic(self, value: NDArray[Any]) -> tf.Variable:
        """A statistic; the state of a stateful network has as many rows as the batch."""
        return tf.Variable(value, shape=[None, *value.shape[1:]] if self._network.stateful else value.shape)

    def _functions(self) -> tuple[Any, Any, Any]:
        """The functions that train, evaluate and sum over processes, traced now so that later calls only compute."""
        number, spec = tf.TensorSpec([], tf.int64), [self._feed.spec] * len(self._ranks)
        vector = tf.TensorSpec([None], tf.float64)
        return (
            traced(self._train_steps, number, number, number, spec),
            self._trace_evaluation(),
            traced(self._sum_over_processes, vector) if self._several_processes else None,
        )

    def _trace_evaluation(self) -> Any:
        """The traced function that evaluates."""
        number, spec = tf.TensorSpec([], tf.int64), [self._feed.spec] * len(self._ranks)
        return traced(self._count_steps, number, number, spec)

    def _replica(self) -> int:
        """Which replica of this process is being traced."""
        context = tf.distribute.get_replica_context()
        return 0 if len(self._ranks) == 1 else int(tf.get_static_value(context.replica_id_in_sync_group))

    def _train_steps(self, first: tf.Tensor, last: tf.Tensor, offset: tf.Tensor, inputs: list[Any]) -> None:
        def body(step: tf.Tensor) -> tuple[tf.Tensor]:
            self._strategy.run(self._train_step, args=(step, offset + step + 1, inputs))
            return (step + 1,)

        tf.while_loop(lambda step: step < last, body, (first,))

    def _train_step(self, step: tf.Tensor, iteration: tf.Tensor, inputs: list[Any]) -> None:
        replica = self._replica()
        batch = self._feed.batch(inputs[replica], step)
        gradient = self._gradient(replica, self._read_weights(), self._network.layout.layers, batch)
        context = tf.distribute.get_replica_context()
        if self._central:
            context.merge_call(self._apply_centrally, args=(gradient, iteration))
        else:
            if self._world > 1:
                gradient = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            self._apply(gradient, iteration)

    def _gradient(self, replica: int, sources: Any, layers: Any, batch: Batch) -> Any:
        """One replica's part of a step's gradient with respect to `sources`; counts and statistics are updated."""
        statistics = [value.read_value() for value in self._statistics[replica]]
        gradient, result = gradient_in_parts(self._network, sources, layers, statistics, batch)
        self._counts[replica].assign_add(result.counts)
        for variable, value in zip(self._statistics[replica], result.statistics, strict=True):
            variable.assign(value)
        return with_total(gradient, result) if self._network.by_total else gradient

    def _apply_centrally(self, strategy: Any, gradient: Any, iteration: Any) -> None:
        """Sum the gradients of the replicas and update the one copy of the weights."""
        summed = strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, gradient, destinations=self._weights.device)
        with tf.device(self._weights.device):
            self._apply(summed, strategy.experimental_local_results(iteration)[0])

    def _apply(self, gradient: tf.Tensor, iteration: tf.Tensor) -> None:
        if self._network.by_total:
            gradient = over_total(gradient[:-1], gradient[-1])
        (gradient,) = clip_by_norm([gradient], self._context.job.clip_norm)
        slots = [slot.handle for slot in self._slots]
        rate = self._rates.at(iteration)
        self._optimizer.apply(self._weights.handle, slots, gradient, rate, self._optimizer.powers(iteration))
        self._network.constrain(self._weights.handle)
        if self._average is not None:
            self._optimizer.move_average(self._average.handle, self._weights.handle, iteration)

    def _count_steps(self, first: tf.Tensor, last: tf.Tensor, inputs: list[Any]) -> None:
        def body(step: tf.Tensor) -> tuple[tf.Tensor]:
            self._strategy.run(self._count_step, args=(step, inputs))
            return (step + 1,)

        tf.while_loop(lambda step: step < last, body, (first,))

    def _count_step(self, step: tf.Tensor, inputs: list[Any]) -> None:
        replica = self._replica()
        statistics = [value.read_value() for value in self._statistics[replica]]
        batch = self._feed.batch(inputs[replica], step)
        result = self._network.count(self._evaluated_layers(), statistics, batch)
        if result.right is not None:
            # Examples come in the order of the replica's partition, so as many as were counted before come first.
            place = tf.cast(self._counts[replica].read_value()[-2], tf.int64)
            right = tf.cast(result.right[: batch.real], tf.float32)
            places = place + tf.range(batch.real)
            tf.raw_ops.ResourceScatterUpdate(resource=self._right[replica].handle, indices=places, updates=right)
            if result.scores is not None:
                scores = tf.cast(result.scores[: batch.real], tf.float64)
                tf.raw_ops.ResourceScatterUpdate(resource=self._scores[replica].handle, indices=places, updates=scores)
        self._counts[replica].assign_add(result.counts)
        if result.confusion is not None:
            self._confusion[replica].assign_add(result.confusion)
        if self._network.stateful:
            for variable, value in zip(self._statistics[replica], result.statistics, strict=True):
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
        for tally in self._counts:
            counts += self._network.counts(tally.numpy())
            tally.assign(np.zeros(self._network.counts_size))
        return counts

    def begin_epoch(self, schedule: Any) -> None:
        self._feed.epoch = self.epoch
        self._feed.begin_epoch(schedule)
        if self._network.stateful:
            self._reset_state(next(self._feed.windows(0, 1)).inputs)

    def _reset_state(self, inputs: list[Any]) -> None:
        """Set the state to that at the beginning of a text."""
        for mine, rows in zip(self._statistics, inputs, strict=True):
            for variable, value in zip(mine, self._network.initial_state(int(rows.inputs.shape[0])), strict=True):
                variable.assign(value)

    def set_rate(self, rate: float) -> None:
        self.set_rates(np.array([rate]))

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._rates.set(rates, self._iterations)

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
        statistics = sum(np.asarray(value).nbytes for value in self._statistics[0])
        return Inspection(weights + statistics, weights, self._slot_bytes(), activations, layers)

    def _slot_bytes(self) -> int:
        """The size of the optimizer's state."""
        return len(self._slots) * self.parameters * int(self._network.dtype.size)

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
        for index in range(len(self._statistics[0])):
            if not self._network.is_averaged(index):
                continue
            held = [mine[index] for mine in self._statistics]
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
        confusion = np.sum([variable.numpy() for variable in self._confusion], axis=0)
        for variable in self._confusion:
            variable.assign(np.zeros_like(confusion))
        mine = self._own_answers() if part == "test" and self._network.has_answers else None
        parts = [self._take_counts().vector(self._network.counted), confusion, self._own_scores(part)]
        if mine is not None:
            parts.append(correctness_bits.to_vector(mine))
        ends = np.cumsum([len(each) for each in parts])
        counts, confusion, scores, *found, _ = np.split(self._sum_over_ranks(np.concatenate(parts)), ends)
        if classes := self._network.confusion_classes:
            self.confusion = np.rint(confusion).astype(np.int64).reshape(classes, classes)
        if mine is not None:
            self.answers = correctness_bits.from_vector(found[0], len(mine))
        return count_scores(self._context, part, self._network.counts(counts), scores)

    def _own_answers(self) -> NDArray[np.bool_]:
        """For every example of the test set, whether a replica of this process has just classified it correctly."""
        found = np.zeros(len(self._context.data.test), np.bool_)
        for rank, right in zip(self._ranks, self._right, strict=True):
            mine = evaluation_indices(len(found), rank, self._world)
            found[mine] = right.numpy()[: len(mine)] > 0
        return found

    def _own_scores(self, part: Part) -> NDArray[np.float64]:
        """For every example of a part, the scores that a replica of this process has just computed, or zeros."""
        size = self._network.score_size
        found = np.zeros((len(getattr(self._context.data, part)) if size else 0, size))
        for rank, scores in zip(self._ranks, self._scores, strict=True):
            mine = evaluation_indices(len(found), rank, self._world)
            found[mine] = scores.numpy()[: len(mine)]
        return found.ravel()

    def total(self, counts: Counts) -> Counts:
        return self._network.counts(self._sum_over_ranks(counts.vector(self._network.counted)))

    def generators(self) -> Generators:
        return super().generators() | generators_of(self._network.model)

    def gather(self, data: bytes) -> list[bytes]:
        if not self._several_processes:
            return [data]
        return gather(data, self._context.rank, self._world, self._sum_over_ranks)

    def state(self) -> State:
        unpack = self._network.layout.unpack
        slots = [unpack(slot.numpy()) for slot in self._slots]
        average = None if self._average is None else unpack(self._average.numpy())
        return pack_state(unpack(self._weights.numpy()), slots, self._saved_statistics(), self._iterations, average)

    def _saved_statistics(self) -> list[NDArray[Any]]:
        """The statistics for checkpoint and model; a state is of no use to the next epoch."""
        return [] if self._network.stateful else [value.numpy() for value in self._statistics[0]]

    def load(self, state: State) -> None:
        weights, slots, statistics, self._iterations = unpack_state(state)
        self._weights.assign(self._network.layout.pack(weights))
        for slot, value in zip(self._slots, slots, strict=True):
            slot.assign(self._network.layout.pack(value))
        if self._average is not None:
            self._average.assign(self._network.layout.pack(state["average"]))
        self._load_statistics(statistics)

    def _load_statistics(self, statistics: Sequence[NDArray[Any]]) -> None:
        for rank, held in zip(self._ranks, [] if self._network.stateful else self._statistics, strict=False):
            for variable, value in zip(held, self._network.statistics_for_rank(statistics, rank), strict=True):
                variable.assign(value)

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        return self._network.check_saving(folder)

    def save(self, folder: Path) -> None:
        saved = self._weights if self._average is None else self._average
        self._network.save(folder, saved.numpy(), self._saved_statistics())

    def close(self) -> None:
        """Two barriers: after the first all processes are done, and one that leaves the second early does no harm."""
        self._sum_over_ranks(np.zeros(1))
        try:
            self._sum_over_ranks(np.zeros(1))
        except tf.errors.OpError:
            return
