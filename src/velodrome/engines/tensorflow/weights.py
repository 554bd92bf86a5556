"""The weights and optimizer of a job in training: one flat buffer on each replica, and TensorFlow's fused kernels.

`tf.raw_ops.ResourceApply*` is TensorFlow's public, documented layer of raw kernels. They replace the Keras optimizers,
which launch several kernels for each weight tensor: an Adam update of dense-300-100 takes 0.24 ms this way and 1.35 ms
with Keras, an SGD update 0.08 and 0.26 ms (one core of an EPYC). The weights on parameter servers are beside their
learner; the forms of `--implementation stock`, and of an optimizer of the user's, are in `stock.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import Array, FlatModel, StepResult
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.training.context import Context
from velodrome.training.learner import State


def total_of(result: StepResult, dtype: tf.DType) -> tf.Tensor:
    """What one replica has counted in a step."""
    return tf.cast(result.counts[-2], dtype)


def with_total(gradient: Any, result: StepResult) -> Any:
    """The gradient of a replica's sum, followed by its total, so that both are summed over the replicas at once."""
    if isinstance(gradient, list):
        return [*gradient, total_of(result, gradient[0].dtype)]
    return tf.concat([gradient, tf.reshape(total_of(result, gradient.dtype), [1])], 0)


def over_total(gradient: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """The gradient divided by the total; zero if nothing was counted."""
    return tf.math.divide_no_nan(gradient, total)


def clip_by_norm(pieces: Sequence[tf.Tensor], norm: float | None) -> list[tf.Tensor]:
    """The pieces of one gradient, scaled together so that its norm is at most `norm`."""
    if norm is None:
        return list(pieces)
    largest = tf.constant(norm, pieces[0].dtype)
    present = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(piece)) for piece in pieces]))
    return [piece * (largest / tf.maximum(present, largest)) for piece in pieces]


class GraphRates:
    """One rate for an epoch or, where the job's schedule changes it at every step, one for each of its updates."""

    def __init__(self, job: Job, dtype: Any, steps: int) -> None:
        """Its variables are on the device of the caller. `steps` are those of an epoch: variables on servers must have
        a fixed shape."""
        self._by_step = job.rate_changes_within_epoch
        self._rate = tf.Variable(job.rate, dtype=dtype)
        if self._by_step:
            self._rates = tf.Variable(np.full(steps, job.rate), dtype=dtype)
            #: Updates before the epoch.
            self._before = tf.Variable(0, dtype=tf.int64)

    def at(self, iteration: tf.Tensor) -> tf.Tensor:
        """The rate of an update, counted from 1."""
        if not self._by_step:
            return self._rate.read_value()
        rates = self._rates.read_value()
        place = iteration - 1 - self._before.read_value()
        # A closure that a lost worker did not finish runs again, so there may be more updates than steps.
        return tf.gather(rates, tf.clip_by_value(place, 0, tf.size(rates, tf.int64) - 1))

    def set(self, rates: NDArray[np.float64], before: int) -> None:
        """Use these rates for the updates that follow the first `before`."""
        if self._by_step:
            self._rates.assign(rates)
            self._before.assign(before)
        else:
            self._rate.assign(rates[0])


def steps_of_epoch(context: Context) -> int:
    """The steps of an epoch, where a schedule needs to know them."""
    return context.task.schedule(context.job, context.data, 1).steps if context.job.rate_changes_within_epoch else 1


#: The default of `keras.optimizers.Adam`.
ADAM_EPSILON = 1e-7

_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True)
class Optimizer:
    """One update rule: `slots` zero-initialised variables, shaped like the weights, go with every buffer."""

    kind: str
    dtype: Any
    weight_decay: float = 0.0
    nesterov: bool = False
    #: Decay of the weights' moving average; None if there is none.
    ema: float | None = None

    @property
    def slots(self) -> int:
        return _SLOTS[self.kind]

    def powers(self, iteration: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """What depends on the update's number, counted from 1; the same for all buffers of an update."""
        if self.kind not in ("adam", "adamw"):
            return ()
        number = tf.cast(iteration, tf.float64)
        return tuple(tf.cast(tf.pow(tf.constant(beta, tf.float64), number), self.dtype) for beta in ADAM_BETAS)

    def apply(self, weights: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: tf.Tensor,
              powers: tuple[tf.Tensor, ...]) -> tf.Operation:
        """Update one buffer in place. `weights` and `slots` are variable handles on one device.

        Locked, so that two workers who push to a server at the same time do not mix their updates of one buffer.
        """
        if self.weight_decay:
            now = tf.raw_ops.ReadVariableOp(resource=weights, dtype=self.dtype)
            decay = tf.constant(self.weight_decay, self.dtype)
            if self.kind == "adamw":  # TensorFlow has no fused kernel of it
                tf.raw_ops.ResourceApplyGradientDescent(var=weights, alpha=rate * decay, delta=now, use_locking=True)
            else:
                gradient += decay * now
        if self.kind == "sgd":
            return tf.raw_ops.ResourceApplyGradientDescent(var=weights, alpha=rate, delta=gradient, use_locking=True)
        if self.kind == "momentum":
            return tf.raw_ops.ResourceApplyKerasMomentum(
                var=weights, accum=slots[0], lr=rate, grad=gradient, momentum=tf.constant(MOMENTUM, self.dtype),
                use_locking=True, use_nesterov=self.nesterov,
            )
        beta1, beta2 = (tf.constant(beta, self.dtype) for beta in ADAM_BETAS)
        return tf.raw_ops.ResourceApplyAdam(
            var=weights, m=slots[0], v=slots[1], beta1_power=powers[0], beta2_power=powers[1], lr=rate,
            beta1=beta1, beta2=beta2, epsilon=tf.constant(ADAM_EPSILON, self.dtype), grad=gradient,
            use_locking=True,
        )

    def move_average(self, average: tf.Tensor, weights: tf.Tensor, iteration: tf.Tensor) -> None:
        """Move the average of a buffer towards its weights, after the update of that number; the first one copies them.
        Both are variable handles on one device."""
        mean, now = (tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype) for handle in (average, weights))
        share = tf.where(iteration > 1, tf.constant(1 - (self.ema or 0.0), self.dtype), tf.constant(1, self.dtype))
        tf.raw_ops.ResourceApplyGradientDescent(var=average, alpha=share, delta=mean - now, use_locking=True)


def optimizer_of(job: Job) -> Optimizer:
    return Optimizer(job.optimizer, tf.as_dtype(job.weights_dtype), job.decay_of_weights, job.nesterov, job.ema)


def is_by_keras(job: Job) -> bool:
    """Whether a Keras optimizer changes the variables of the Keras model: in the stock form, and where the optimizer is
    the user's."""
    return job.implementation == "stock" or job.has_own_optimizer


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
        """Use these learning rates for the updates that follow the first `before`."""

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
