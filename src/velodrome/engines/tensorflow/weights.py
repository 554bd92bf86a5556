"""The weights and optimizer of a job in training: one flat buffer, on each replica or on parameter servers.

The forms of `--implementation stock`, and of an optimizer of the user's, are in `stock.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import Array, FlatModel
from velodrome.engines.tensorflow.optimizers import GraphRates, clip_by_norm, optimizer_of, over_total
from velodrome.job.job import Job
from velodrome.worker.learner import State


class Weights(ABC):
    """Weights with their optimizer. The first three methods are called in a graph, the others outside."""

    _network: FlatModel

    @abstractmethod
    def pull(self) -> Any:
        """The weights, as they are now: a tensor or several."""

    @abstractmethod
    def layers(self, pulled: Any) -> list[tf.Tensor]:
        """Each layer's weights from what was pulled."""

    @abstractmethod
    def evaluated_layers(self) -> list[tf.Tensor]:
        """Each layer's weights that are evaluated, as they are now."""

    def tracing(self) -> AbstractContextManager[None]:
        """Around the tracing of graphs that update the weights: translates what a user's optimizer raises."""
        return nullcontext()

    @abstractmethod
    def set_rates(self, rates: NDArray[np.float64], before: int) -> None:
        """Use these learning rates for the updates after so many."""

    @abstractmethod
    def values(self) -> tuple[Array, list[Array]]:
        """The weights in the model's order, and the optimizer's slots alike."""

    @abstractmethod
    def average(self) -> Array | None:
        """The moving average of the weights in the model's order; None if there is none."""

    @abstractmethod
    def assign(self, weights: Array, slots: Sequence[Array], iterations: int, average: Array | None) -> None:
        """Set what `values` and `average` returned."""

    def state(self, statistics: Sequence[Array], iterations: int) -> State:
        """The state of a learner with these weights, in a checkpoint."""
        weights, slots = self.values()
        average = self.average()
        return {
            "weights": weights, "iterations": np.array(iterations, np.int64),
            **{f"slot.{index}": value for index, value in enumerate(slots)},
            **{f"statistic.{index}": value for index, value in enumerate(statistics)},
            **({} if average is None else {"average": average}),
        }

    def load(self, state: State) -> tuple[list[Array], int]:
        """Continue from a state; its statistics and its number of updates."""

        def numbered(kind: str) -> list[Array]:
            count = sum(name.startswith(f"{kind}.") for name in state)
            return [state[f"{kind}.{index}"] for index in range(count)]

        iterations = int(state["iterations"])
        self.assign(state["weights"], numbered("slot"), iterations, state.get("average"))
        return numbered("statistic"), iterations

    def saved(self) -> Array:
        """The buffer that is saved as the trained model: of the average where there is one."""
        average = self.average()
        return self._network.layout.pack(self.values()[0] if average is None else average)


class FlatWeights(Weights):
    """One flat buffer, in one part or in several, each with slots, learning rates and an average beside it."""

    def __init__(self, job: Job, network: FlatModel) -> None:
        self._job, self._network, self._optimizer = job, network, optimizer_of(job)
        self._parts: list[Any] = []
        self._slots: list[list[Any]] = []
        self._rates: list[GraphRates] = []
        #: The moving average of the weights, which is evaluated and saved in their place; empty without one.
        self._averages: list[Any] = []

    def set_rates(self, rates: NDArray[np.float64], before: int) -> None:
        for held in self._rates:
            held.set(rates, before)

    def _buffers(self) -> list[list[Any]]:
        """The parts of the weights, and those of each slot."""
        return [self._parts, *([slots[index] for slots in self._slots] for index in range(self._optimizer.slots))]

    def _whole(self, parts: Sequence[Any]) -> Array:
        return self._network.layout.unpack(np.concatenate([part.numpy() for part in parts]))

    def values(self) -> tuple[Array, list[Array]]:
        weights, *slots = map(self._whole, self._buffers())
        return weights, slots

    def average(self) -> Array | None:
        return self._whole(self._averages) if self._averages else None

    def assign(self, weights: Array, slots: Sequence[Array], iterations: int, average: Array | None) -> None:
        averages = [(self._averages, average)] if average is not None else []
        for parts, value in [*zip(self._buffers(), [weights, *slots], strict=True), *averages]:
            values, first = self._network.layout.pack(value), 0
            for part in parts:
                part.assign(values[first : first + part.shape[0]])
                first += part.shape[0]


class ReplicaWeights(FlatWeights):
    """A buffer that a strategy distributes over its replicas, or keeps in one place (`central`)."""

    def __init__(self, job: Job, network: FlatModel, strategy: Any, steps: int, *, central: bool = False) -> None:
        """`steps` are those of an epoch."""
        super().__init__(job, network)
        self._strategy, self._central, initial = strategy, central, network.weights()
        with strategy.scope():
            self.buffer = tf.Variable(initial)
            self._parts = [self.buffer]
            self._slots = [[tf.Variable(np.zeros_like(initial)) for _ in range(self._optimizer.slots)]]
            if job.ema is not None:
                self._averages = [tf.Variable(initial)]
        self._rates = [GraphRates(job, network.dtype, steps)]

    def start_from(self, buffer: Array) -> None:
        """Begin with other weights."""
        for variable in (self.buffer, *self._averages):
            variable.assign(buffer)

    def _read(self, variable: Any) -> tf.Tensor:
        """A buffer, as this replica sees it."""
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=self._network.dtype)

    def pull(self) -> tf.Tensor:
        return self._read(self.buffer)

    def layers(self, pulled: tf.Tensor) -> list[tf.Tensor]:
        return self._network.layout.layers(pulled)

    def evaluated_layers(self) -> list[tf.Tensor]:
        return self.layers(self._read(self._averages[0] if self._averages else self.buffer))

    def update(self, gradient: tf.Tensor, iteration: tf.Tensor) -> None:
        """Sum a gradient over the replicas and apply it, as update number `iteration`, counted from 1."""
        context = tf.distribute.get_replica_context()
        if self._central:
            context.merge_call(self._apply_centrally, args=(gradient, iteration))
            return
        if self._strategy.num_replicas_in_sync > 1:
            gradient = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        self.apply(gradient, iteration)

    def _apply_centrally(self, strategy: Any, gradient: Any, iteration: Any) -> None:
        summed = strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, gradient, destinations=self.buffer.device)
        with tf.device(self.buffer.device):
            self.apply(summed, strategy.experimental_local_results(iteration)[0])

    def apply(self, gradient: tf.Tensor, iteration: tf.Tensor) -> None:
        """Apply a gradient that was summed over the replicas."""
        if self._network.by_total:
            gradient = over_total(gradient[:-1], gradient[-1])
        (gradient,) = clip_by_norm([gradient], self._job.clip_norm)
        slots = [slot.handle for slot in self._slots[0]]
        rate, powers = self._rates[0].at(iteration), self._optimizer.powers(iteration)
        self._optimizer.apply(self.buffer.handle, slots, gradient, rate, powers)
        self._network.constrain(self.buffer.handle)
        for average in self._averages:
            self._optimizer.move_average(average.handle, self.buffer.handle, iteration)


class FlatServerWeights(FlatWeights):
    """A buffer on parameter servers, split over them as the strategy's partitioner decides."""

    def __init__(self, job: Job, network: FlatModel, strategy: Any, steps: int) -> None:
        """`steps` are those of an epoch."""
        super().__init__(job, network)
        with strategy.scope():
            weights = tf.Variable(network.weights())
        self._parts = list(getattr(weights, "variables", [weights]))
        for part in self._parts:
            with tf.device(part.device):
                zeros = np.zeros(part.shape, job.weights_dtype)
                self._slots.append([tf.Variable(zeros) for _ in range(self._optimizer.slots)])
                self._rates.append(GraphRates(job, network.dtype, steps))
                if job.ema is not None:
                    self._averages.append(tf.Variable(part.numpy()))

    def pull(self) -> list[tf.Tensor]:
        return [part.read_value() for part in self._parts]

    def layers(self, pulled: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._network.layout.layers(pulled[0] if len(pulled) == 1 else tf.concat(pulled, 0))

    def send(self, gradient: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradient with respect to what was pulled, after it has arrived where it is applied."""
        arrived = []
        for part, piece in zip(self._parts, gradient, strict=True):
            with tf.device(part.device):
                arrived.append(tf.identity(piece))
        return arrived

    def apply(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor) -> None:
        """Apply a gradient that was sent, as update number `iteration`, counted from 1."""
        with tf.device(iteration.device):
            powers = self._optimizer.powers(iteration)
        for index, (part, slots, rates, piece) in enumerate(
            zip(self._parts, self._slots, self._rates, gradient, strict=True)
        ):
            with tf.device(part.device):
                handles = [slot.handle for slot in slots]
                self._optimizer.apply(part.handle, handles, piece, rates.at(iteration), powers)
                if self._averages and not self._network.is_constrained:
                    self._optimizer.move_average(self._averages[index].handle, part.handle, iteration)
        if self._network.is_constrained:
            self._constrain(iteration)

    def _constrain(self, iteration: tf.Tensor) -> None:
        """Move the weights to where the layers' constraints want them. Added, not assigned: updates of other workers
        that arrive meanwhile are not lost."""
        pulled = self.pull()
        whole = pulled[0] if len(pulled) == 1 else tf.concat(pulled, 0)
        moves = tf.split(self._network.constrained(whole) - whole, [part.shape[0] for part in self._parts])
        for index, (part, move) in enumerate(zip(self._parts, moves, strict=True)):
            with tf.device(part.device):
                part.assign_add(move, read_value=False)
                if self._averages:
                    self._optimizer.move_average(self._averages[index].handle, part.handle, iteration)

    def evaluated_layers(self) -> list[tf.Tensor]:
        return self.layers([part.read_value() for part in self._averages or self._parts])
