"""The weights and optimizer of a parameter-server job, on its servers: one flat buffer, split if it is large.

The form of `--implementation stock` is in `stock.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from velodrome.engines.tensorflow.flat import Array, FlatModel
from velodrome.engines.tensorflow.optimizers import optimizer_of
from velodrome.spec.job import Job


class ServerWeights(ABC):
    """Weights on servers. The first four methods are called in the graph of a closure, the others in the chief."""

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
    def set_rate(self, rate: float) -> None: ...

    @abstractmethod
    def values(self) -> tuple[Array, list[Array]]:
        """The weights in the model's order, and the optimizer's slots alike."""

    @abstractmethod
    def load(self, weights: Array, slots: Sequence[Array], iterations: int) -> None:
        """Set what `values` returned."""


class FlatServerWeights(ServerWeights):
    """One flat buffer, split over the servers as the strategy's partitioner decides."""

    def __init__(self, job: Job, network: FlatModel, strategy: Any) -> None:
        self._network, self._optimizer = network, optimizer_of(job)
        with strategy.scope():
            weights = tf.Variable(network.weights())
        self._parts = list(getattr(weights, "variables", [weights]))
        self._slots, self._rates = [], []
        for part in self._parts:
            with tf.device(part.device):
                zeros = np.zeros(part.shape, job.dtype)
                self._slots.append([tf.Variable(zeros) for _ in range(self._optimizer.slots)])
                self._rates.append(tf.Variable(job.rate, dtype=network.dtype))

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
        for part, slots, rate, piece in zip(self._parts, self._slots, self._rates, gradient, strict=True):
            with tf.device(part.device):
                handles = [slot.handle for slot in slots]
                self._optimizer.apply(part.handle, handles, piece, rate.read_value(), powers)

    def set_rate(self, rate: float) -> None:
        for variable in self._rates:
            variable.assign(rate)

    def _buffers(self) -> list[list[Any]]:
        """The parts of the weights, and those of each slot."""
        return [self._parts, *([slots[index] for slots in self._slots] for index in range(self._optimizer.slots))]

    def values(self) -> tuple[Array, list[Array]]:
        unpack = self._network.layout.unpack
        weights, *slots = (unpack(np.concatenate([part.numpy() for part in parts])) for parts in self._buffers())
        return weights, slots

    def load(self, weights: Array, slots: Sequence[Array], iterations: int) -> None:
        for parts, value in zip(self._buffers(), [weights, *slots], strict=True):
            values, first = self._network.layout.pack(value), 0
            for part in parts:
                part.assign(values[first : first + part.shape[0]])
                first += part.shape[0]
