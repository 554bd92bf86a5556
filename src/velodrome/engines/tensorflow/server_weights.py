"""The weights and optimizer of a parameter-server job, on its servers: one flat buffer, split if it is large.

The form of `--implementation stock` is in `stock.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import Array, FlatModel
from velodrome.engines.tensorflow.optimizers import GraphRates, optimizer_of
from velodrome.job.job import Job


class ServerWeights(ABC):
    """Weights on servers. The first five methods are called in the graph of a closure, the others in the chief."""

    @abstractmethod
    def pull(self) -> list[tf.Tensor]:
        """The weights, as they are now."""

    @abstractmethod
    def layers(self, pulled: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Each layer's weights from what was pulled."""

    @abstractmethod
    def send(self, gradient: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradient with respect to what was pulled, after it has arrived where it is applied."""

    @abstractmethod
    def apply(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor) -> None:
        """Apply a gradient that was sent, as update number `iteration`, counted from 1."""

    @abstractmethod
    def evaluated_layers(self) -> list[tf.Tensor]:
        """Each layer's weights that are evaluated, as they are now."""

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
    def load(self, weights: Array, slots: Sequence[Array], iterations: int, average: Array | None) -> None:
        """Set what `values` and `average` returned."""


class FlatServerWeights(ServerWeights):
    """One flat buffer, split over the servers as the strategy's partitioner decides."""

    def __init__(self, job: Job, network: FlatModel, strategy: Any, steps: int) -> None:
        """`steps` are those of an epoch."""
        self._network, self._optimizer = network, optimizer_of(job)
        with strategy.scope():
            weights = tf.Variable(network.weights())
        self._parts = list(getattr(weights, "variables", [weights]))
        self._slots, self._rates, self._averages = [], [], []
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
        arrived = []
        for part, piece in zip(self._parts, gradient, strict=True):
            with tf.device(part.device):
                arrived.append(tf.identity(piece))
        return arrived

    def apply(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor) -> None:
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

    def set_rates(self, rates: NDArray[np.float64], before: int) -> None:
        for held in self._rates:
            held.set(rates, before)

    def _buffers(self) -> list[list[Any]]:
        """The parts of the weights, and those of each slot."""
        return [self._parts, *([slots[index] for slots in self._slots] for index in range(self._optimizer.slots))]

    def values(self) -> tuple[Array, list[Array]]:
        unpack = self._network.layout.unpack
        weights, *slots = (unpack(np.concatenate([part.numpy() for part in parts])) for parts in self._buffers())
        return weights, slots

    def average(self) -> Array | None:
        if not self._averages:
            return None
        return self._network.layout.unpack(np.concatenate([part.numpy() for part in self._averages]))

    def load(self, weights: Array, slots: Sequence[Array], iterations: int, average: Array | None) -> None:
        averages = [(self._averages, average)] if average is not None else []
        for parts, value in [*zip(self._buffers(), [weights, *slots], strict=True), *averages]:
            values, first = self._network.layout.pack(value), 0
            for part in parts:
                part.assign(values[first : first + part.shape[0]])
                first += part.shape[0]
