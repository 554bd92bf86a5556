"""Training over the replicas of a `tf.distribute` strategy: single, mirrored, central-storage, multi-worker-mirrored.

Weights and slots are flat buffers that the strategy keeps; statistics and counts belong to each replica of this
process. The gradient is summed over all replicas once a step, as one buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow import deck as decks
from velodrome.engines.tensorflow.deck import Deck, Pixels
from velodrome.engines.tensorflow.network import Network
from velodrome.engines.tensorflow.optimizers import optimizer_of
from velodrome.engines.tensorflow.state import pack_state, unpack_state
from velodrome.worker.context import Context
from velodrome.worker.counts import Counts
from velodrome.worker.learner import Learner, Part, State
from velodrome.worker.schedule import Schedule


class Replicas(Learner):
    """A network on the replicas that a strategy has in this process."""

    def __init__(
        self, context: Context, network: Network, strategy: Any, devices: Sequence[str | None], *, central: bool = False
    ) -> None:
        self._context, self._network, self._strategy, self._central = context, network, strategy, central
        self._optimizer = optimizer_of(context.job)
        self.parameters = network.parameters
        self._world = context.job.workers
        self._several_processes = len(devices) < self._world
        self._ranks = range(context.rank, context.rank + len(devices))
        initial = network.weights()
        with strategy.scope():
            self._weights = tf.Variable(initial)
            self._slots = [tf.Variable(np.zeros_like(initial)) for _ in range(self._optimizer.slots)]
        self._statistics, self._tallies = [], []
        for rank, device in zip(self._ranks, devices, strict=True):
            with tf.device(device):
                self._statistics.append([tf.Variable(value) for value in network.initial_statistics(rank)])
                self._tallies.append(tf.Variable(np.zeros(3)))
        self._rate = tf.Variable(context.job.rate, dtype=network.dtype)
        self._iterations = 0
        self._pixels = {"train": Pixels.of(context.data.train)}
        self._decks: list[Deck] = []
        self._train, self._count, self._sum = self._functions()

    def _functions(self) -> tuple[Any, Any, Any]:
        """Trace everything now, so that a call later only computes."""
        number = tf.TensorSpec([], tf.int64)
        pixels, spec = Pixels.spec(self._network.shape), [decks.SPEC] * len(self._ranks)
        train = tf.function(self._train_steps, autograph=False)
        count = tf.function(self._count_steps, autograph=False)
        total = tf.function(self._sum_over_processes, autograph=False)
        return (
            train.get_concrete_function(number, number, number, spec, pixels),
            count.get_concrete_function(number, spec, pixels),
            total.get_concrete_function(tf.TensorSpec([None], tf.float64)) if self._several_processes else None,
        )

    def _here(self) -> int:
        """Which replica of this process is being traced."""
        context = tf.distribute.get_replica_context()
        return 0 if len(self._ranks) == 1 else int(tf.get_static_value(context.replica_id_in_sync_group))

    def _train_steps(self, first: tf.Tensor, last: tf.Tensor, offset: tf.Tensor, dealt: list[Deck],
                     pixels: Pixels) -> None:
        def body(step: tf.Tensor) -> tuple[tf.Tensor]:
            self._strategy.run(self._train_step, args=(step, offset + step + 1, dealt, pixels))
            return (step + 1,)

        tf.while_loop(lambda step: step < last, body, (first,))

    def _train_step(self, step: tf.Tensor, iteration: tf.Tensor, dealt: list[Deck], pixels: Pixels) -> None:
        here = self._here()
        hand, statistics = dealt[here], self._statistics[here]
        images, labels = decks.deal(hand, pixels, step)
        weights = tf.raw_ops.ReadVariableOp(resource=self._weights.handle, dtype=self._network.dtype)
        gradient, after, tally = self._network.gradient(
            weights, self._network.unpack, [value.read_value() for value in statistics], images, labels,
            hand.real[step], hand.batch[step],
        )
        self._tallies[here].assign_add(tally)
        for variable, value in zip(statistics, after, strict=True):
            variable.assign(value)
        context = tf.distribute.get_replica_context()
        if self._central:
            context.merge_call(self._apply_centrally, args=(gradient, iteration))
        else:
            if self._world > 1:
                gradient = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            self._apply(gradient, iteration)

    def _apply_centrally(self, strategy: Any, gradient: Any, iteration: Any) -> None:
        """Sum what the replicas bring and update the one copy of the weights."""
        summed = strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, gradient, destinations=self._weights.device)
        with tf.device(self._weights.device):
            self._apply(summed, strategy.experimental_local_results(iteration)[0])

    def _apply(self, gradient: tf.Tensor, iteration: tf.Tensor) -> None:
        slots = [slot.handle for slot in self._slots]
        rate = self._rate.read_value()
        self._optimizer.apply(self._weights.handle, slots, gradient, rate, self._optimizer.powers(iteration))

    def _count_steps(self, steps: tf.Tensor, dealt: list[Deck], pixels: Pixels) -> None:
        def body(step: tf.Tensor) -> tuple[tf.Tensor]:
            self._strategy.run(self._count_step, args=(step, dealt, pixels))
            return (step + 1,)

        tf.while_loop(lambda step: step < steps, body, (tf.constant(0, tf.int64),))

    def _count_step(self, step: tf.Tensor, dealt: list[Deck], pixels: Pixels) -> None:
        here = self._here()
        images, labels = decks.deal(dealt[here], pixels, step)
        weights = tf.raw_ops.ReadVariableOp(resource=self._weights.handle, dtype=self._network.dtype)
        statistics = [value.read_value() for value in self._statistics[here]]
        tally = self._network.count(self._network.unpack(weights), statistics, images, labels, dealt[here].real[step])
        self._tallies[here].assign_add(tally)

    def _sum_over_processes(self, vector: tf.Tensor) -> tf.Tensor:
        def one(mine: tf.Tensor) -> tf.Tensor:
            # The strategy sums where a tensor lives, and an argument lives nowhere until it is copied.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(mine))

        return self._strategy.run(one, args=(vector,))

    def _summed(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over all processes of what each brings."""
        return np.asarray(self._sum(tf.constant(vector, tf.float64))) if self._sum else vector

    def _counted(self) -> Counts:
        """What this process has counted since the last time."""
        counts = Counts()
        for tally in self._tallies:
            counts += Counts.of(tally.numpy())
            tally.assign(np.zeros(3))
        return counts

    def begin_epoch(self, schedule: Schedule) -> None:
        self._decks = decks.train_decks(schedule, self._ranks)

    def set_rate(self, rate: float) -> None:
        self._rate.assign(rate)

    def train(self, first: int, last: int) -> Counts:
        number = [tf.constant(value, tf.int64) for value in (first, last, self._iterations - first)]
        self._context.status.waiting = self._several_processes
        try:
            self._train(*number, self._decks, self._pixels["train"])
            counts = self._counted()
        finally:
            self._context.status.waiting = False
        self._iterations += last - first
        return counts

    def agree(self, number: int) -> int:
        return round(float(self._summed(np.array([number if self._context.rank == 0 else 0.0]))[0]))

    def average_statistics(self) -> None:
        for index in range(len(self._network.statistics)):
            if not self._network.averaged(index):
                continue
            held = [mine[index] for mine in self._statistics]
            mine = np.sum([np.asarray(variable, np.float64) for variable in held], axis=0)
            mean = self._summed(mine.ravel()).reshape(mine.shape) / self._world
            for variable in held:
                variable.assign(tf.cast(mean, variable.dtype))

    def evaluate(self, part: Part) -> Counts:
        if part not in self._pixels:
            self._pixels[part] = Pixels.of(getattr(self._context.data, part))
        pixels = self._pixels[part]
        examples = int(pixels.labels.shape[0])
        dealt = [decks.evaluation_deck(examples, rank, self._world) for rank in self._ranks]
        self._count(tf.cast(tf.size(dealt[0].real), tf.int64), dealt, pixels)
        return self.total(self._counted())

    def total(self, counts: Counts) -> Counts:
        return Counts.of(self._summed(counts.vector()))

    def state(self) -> State:
        slots = [slot.numpy() for slot in self._slots]
        statistics = [value.numpy() for value in self._statistics[0]]
        return pack_state(self._weights.numpy(), slots, statistics, self._iterations)

    def load(self, state: State) -> None:
        weights, slots, statistics, self._iterations = unpack_state(state)
        self._weights.assign(weights)
        for slot, value in zip(self._slots, slots, strict=True):
            slot.assign(value)
        for rank, held in zip(self._ranks, self._statistics, strict=True):
            for variable, value in zip(held, self._network.for_rank(statistics, rank), strict=True):
                variable.assign(value)

    def save(self, folder: Path) -> None:
        self._network.save(folder, self._weights.numpy(), [value.numpy() for value in self._statistics[0]])

    def close(self) -> None:
        """Everybody is done after the first meeting; who leaves the second one early does no harm."""
        self._summed(np.zeros(1))
        try:
            self._summed(np.zeros(1))
        except tf.errors.OpError:
            return
