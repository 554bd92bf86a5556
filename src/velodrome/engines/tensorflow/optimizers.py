"""From gradients to new weights: accumulated parts, totals, learning rates, and TensorFlow's fused optimizer kernels.

`tf.raw_ops.ResourceApply*` is TensorFlow's public, documented layer of raw kernels. They replace the Keras optimizers,
which launch several kernels for each weight tensor: an Adam update of dense-300-100 takes 0.24 ms this way and 1.35 ms
with Keras, an SGD update 0.08 and 0.26 ms (one core of an EPYC). `--implementation stock` trains with the Keras
optimizers. The slots belong to the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import Batch, FlatModel, StepResult
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.worker.context import Context


def gradient_in_parts(
    network: FlatModel, sources: Any, weights: Any, statistics: Sequence[tf.Tensor], batch: Batch
) -> tuple[Any, StepResult]:
    """What `network.gradient` returns for a batch, computed on as many parts of it as the job asks for."""
    if network.job.accumulate == 1:
        return network.gradient(sources, weights, statistics, batch)
    rows = tf.shape(tf.nest.flatten(batch.inputs)[0], tf.int64)[0]
    parts = tf.minimum(tf.constant(network.job.accumulate, tf.int64), rows)  # none of them is empty
    held = list(statistics)

    def body(part: tf.Tensor, counts: tf.Tensor, total: list[tf.Tensor], state: list[tf.Tensor]) -> tuple[Any, ...]:
        low, high = part * rows // parts, (part + 1) * rows // parts
        here = [value[low:high] for value in state] if network.stateful else state
        inner = tf.nest.map_structure(tf.identity, sources)
        gradient, result = network.gradient(inner, weights, here, _part_of(batch, low, high))
        dense = [tf.convert_to_tensor(piece) for piece in tf.nest.flatten(gradient)]
        after = result.statistics
        if network.stateful:
            after = [
                tf.concat([old[:low], new, old[high:]], 0) for old, new in zip(state, result.statistics, strict=True)
            ]
        added = [one + other for one, other in zip(total, dense, strict=True)]
        return part + 1, counts + result.counts, added, after

    nothing = [tf.zeros_like(source) for source in tf.nest.flatten(sources)]
    start = tf.constant(0, tf.int64), tf.zeros([network.counts_size], tf.float64), nothing, held
    shapes = tf.nest.map_structure(lambda value: value.shape, start)
    if network.stateful:
        shapes = *shapes[:3], [tf.TensorShape([None, *value.shape[1:]]) for value in held]
    _, counts, total, state = tf.while_loop(
        lambda part, *_: part < parts, body, start, shape_invariants=shapes, parallel_iterations=1
    )
    return tf.nest.pack_sequence_as(sources, total), StepResult(counts, list(state))


def _part_of(batch: Batch, low: tf.Tensor, high: tf.Tensor) -> Batch:
    """Some of a batch's examples; losses are divided by the size of the whole."""
    inputs, targets = (
        tf.nest.map_structure(lambda value: value[low:high], values) for values in (batch.inputs, batch.targets)
    )
    if batch.real.shape.rank == 0:  # all examples count, or none does
        real = tf.where(batch.real > 0, tf.cast(high - low, batch.real.dtype), tf.zeros_like(batch.real))
    else:
        real = batch.real[low:high]
    return batch._replace(inputs=inputs, targets=targets, real=real)


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
        """Use these rates for the updates after so many."""
        if self._by_step:
            self._rates.assign(rates)
            self._before.assign(before)
        else:
            self._rate.assign(rates[0])


def steps_of_epoch(context: Context) -> int:
    """The steps of an epoch, where a schedule needs to know them."""
    return context.task.schedule(context.job, context.data, 1).steps if context.job.rate_changes_within_epoch else 1


class KerasRates(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The same as Keras optimizers take it."""

    def __init__(self, rates: GraphRates) -> None:
        self._rates = rates

    def __call__(self, step: Any) -> tf.Tensor:
        return self._rates.at(tf.cast(step, tf.int64) + 1)

    def get_config(self) -> dict[str, Any]:
        return {}


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
