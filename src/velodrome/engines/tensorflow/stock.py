"""`--implementation stock`: the same strategies with Keras' own variables and optimizers.

Weights are the variables of the Keras model, created in the strategy's scope; a Keras optimizer sums the gradients of
the replicas and applies them. Examples, losses and counts are those of the other form, so that only the parts differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome.engines.tensorflow.checkpoint_state import pack_state, unpack_state
from velodrome.engines.tensorflow.flat import Array, FlatModel, clip_by_norm
from velodrome.engines.tensorflow.optimizers import ADAM_EPSILON
from velodrome.engines.tensorflow.replicas import Replicas
from velodrome.engines.tensorflow.server_weights import ServerWeights
from velodrome.engines.tensorflow.totals import over_total
from velodrome.spec.job import ADAM_BETAS, MOMENTUM, Job
from velodrome.worker.learner import State


def keras_optimizer(job: Job) -> keras.optimizers.Optimizer:
    """The Keras optimizer of a job."""
    if job.optimizer == "adam":
        first, second = ADAM_BETAS
        return keras.optimizers.Adam(job.rate, beta_1=first, beta_2=second, epsilon=ADAM_EPSILON)
    return keras.optimizers.SGD(job.rate, momentum=MOMENTUM if job.optimizer == "momentum" else 0.0)


class KerasWeights:
    """The variables of a Keras model that was built in the strategy's scope, and their optimizer."""

    def __init__(self, job: Job, network: FlatModel, strategy: Any) -> None:
        self._network, self._strategy = network, strategy
        with strategy.scope():
            self.optimizer = keras_optimizer(job)
            self.optimizer.build(network.trainable)

    def read(self) -> list[tf.Tensor]:
        """The weights of each layer, as this replica sees them."""
        return [tf.convert_to_tensor(variable.value) for variable in self._network.trainable]

    def apply(self, gradient: Sequence[tf.Tensor]) -> None:
        """Sum the gradient over the replicas, which the optimizer does, and apply it. Call it in a replica context."""
        dense = [tf.convert_to_tensor(piece) for piece in gradient]  # an embedding's gradient may be sparse
        self.optimizer.apply(dense, self._network.trainable)

    def set_rate(self, rate: float) -> None:
        with self._strategy.scope():
            self.optimizer.learning_rate = rate

    def _slots(self) -> list[list[Any]]:
        """The optimizer's variables of each kind, in the order of the weights: Keras interleaves the kinds."""
        others = (self.optimizer.iterations.path, self.optimizer.learning_rate.path)
        slots = [variable for variable in self.optimizer.variables if variable.path not in others]
        kinds = len(slots) // len(self._network.trainable)
        return [slots[kind::kinds] for kind in range(kinds)]

    def values(self) -> tuple[Array, list[Array]]:
        return _concatenated(self._network.trainable), [_concatenated(slot) for slot in self._slots()]

    def load(self, weights: Array, slots: Sequence[Array], iterations: int) -> None:
        for variables, values in zip([self._network.trainable, *self._slots()], [weights, *slots], strict=True):
            parts = np.split(values, np.cumsum([int(np.prod(variable.shape)) for variable in variables])[:-1])
            for variable, part in zip(variables, parts, strict=True):
                variable.assign(part.reshape(variable.shape))
        self.optimizer.iterations.assign(iterations)


def _concatenated(variables: Sequence[Any]) -> Array:
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(variable)) for variable in variables])


class StockReplicas(Replicas):
    """Synchronous training with Keras' own parts. The network must have been built in the strategy's scope."""

    def _create_weights(self) -> None:
        self._keras = KerasWeights(self._context.job, self._network, self._strategy)

    def _layer_weights(self) -> list[tf.Tensor]:
        return self._keras.read()

    def _train_step(self, step: tf.Tensor, iteration: tf.Tensor, inputs: list[Any]) -> None:
        replica = self._replica()
        batch = self._feed.batch(inputs[replica], step)
        gradient = self._gradient(replica, self._keras.read(), list, batch)
        norm, by_total = self._context.job.clip_norm, self._network.by_total
        if norm is not None or by_total:
            # Keras clips before it sums over replicas. Summed here, the gradient is clipped as a whole; the optimizer
            # then sums equal shares of it.
            gradient = [tf.convert_to_tensor(piece) for piece in gradient]
            if self._world > 1:
                gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            if by_total:
                *gradient, total = gradient
                gradient = [over_total(piece, total) for piece in gradient]
            gradient = [piece / self._world for piece in clip_by_norm(gradient, norm)]
        self._keras.apply(gradient)

    def set_rate(self, rate: float) -> None:
        self._keras.set_rate(rate)

    def state(self) -> State:
        return pack_state(*self._keras.values(), self._saved_statistics(), self._iterations)

    def load(self, state: State) -> None:
        weights, slots, statistics, self._iterations = unpack_state(state)
        self._keras.load(weights, slots, self._iterations)
        self._load_statistics(statistics)

    def save(self, folder: Path) -> None:
        self._network.save(folder, self._network.weights(), self._saved_statistics())


class KerasServerWeights(KerasWeights, ServerWeights):
    """The variables of a Keras model, each whole on one of the servers: Keras cannot use one that is split."""

    def pull(self) -> list[tf.Tensor]:
        return self.read()

    def layers(self, pulled: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(pulled)

    def send(self, gradient: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(piece) for piece in gradient]

    def apply(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor | None = None) -> None:
        def apply_in_replica(pieces: Sequence[tf.Tensor]) -> None:
            # The strategy reduces on the device of a tensor, and an argument has none until it is copied.
            KerasWeights.apply(self, [tf.identity(piece) for piece in pieces])

        self._strategy.run(apply_in_replica, args=(gradient,))
