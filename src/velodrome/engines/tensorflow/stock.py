"""`--implementation stock`, and optimizers of the user's: the same strategies with Keras' own variables and optimizers.

Weights are the variables of the Keras model, created in the strategy's scope; a Keras optimizer sums the gradients of
the replicas and applies them. Examples, losses and counts are those of the other form, so that only the parts differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.engines.tensorflow.flat import Array, FlatModel
from velodrome.engines.tensorflow.weights import ADAM_EPSILON, GraphRates, Weights, clip_by_norm, over_total
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.models.own import builder_of, reason_of


def keras_optimizer(job: Job) -> keras.optimizers.Optimizer:
    """The Keras optimizer of a job. Its weight decay, which Keras has in the decoupled form only, is `added_decay`."""
    # Keras rounds Python's numbers to float32 on their way into a graph, and NumPy's not.
    exact = np.float64 if job.weights_dtype == "float64" else float
    if job.optimizer in ("adam", "adamw"):
        settings = {"beta_1": exact(ADAM_BETAS[0]), "beta_2": exact(ADAM_BETAS[1]), "epsilon": exact(ADAM_EPSILON)}
        if job.optimizer == "adam":
            return keras.optimizers.Adam(job.rate, **settings)
        return keras.optimizers.AdamW(job.rate, weight_decay=exact(job.decay_of_weights), **settings)
    momentum = MOMENTUM if job.optimizer == "momentum" else 0.0
    return keras.optimizers.SGD(job.rate, momentum=exact(momentum), nesterov=job.nesterov)


def added_decay(job: Job) -> float:
    """The weight decay that is added to the gradient."""
    return 0.0 if job.optimizer == "adamw" or job.has_own_optimizer else job.decay_of_weights


def users_optimizer(name: str) -> keras.optimizers.Optimizer:
    """What the user's function returns, or `BadRequest` if it is no Keras optimizer."""
    made = builder_of(name, option="--optimizer")()
    if not isinstance(made, keras.optimizers.Optimizer):
        raise BadRequest(
            f"--optimizer {name!r} returned {type(made).__name__!r}: --engine tensorflow needs a Keras optimizer"
        )
    refused = (
        (isinstance(made, keras.optimizers.LossScaleOptimizer) or made.loss_scale_factor,
         "divides gradients by a loss scale that only Keras' fit applies: leave out loss scaling, which bfloat16 does "
         "not need"),
        (made.gradient_accumulation_steps,
         "adds up gradients (gradient_accumulation_steps), which Keras cannot do under most strategies: leave it out, "
         "and use --accumulate"),
        (made.use_ema and not made.ema_overwrite_frequency,
         "keeps averages of the weights (use_ema) that only Keras' fit copies into the model: leave it out, and use "
         "--ema"),
    )
    for is_set, why in refused:
        if is_set:
            raise BadRequest(f"--optimizer {name!r} {why}")
    return made


class KerasRates(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The rates of a job as Keras optimizers take them."""

    def __init__(self, rates: GraphRates) -> None:
        self._rates = rates

    def __call__(self, step: Any) -> tf.Tensor:
        return self._rates.at(tf.cast(step, tf.int64) + 1)

    def get_config(self) -> dict[str, Any]:
        return {}


class KerasWeights(Weights):
    """The variables of a Keras model that was built in the strategy's scope, and their optimizer."""

    #: Whether they are on parameter servers.
    on_servers = False

    def __init__(self, job: Job, network: FlatModel, strategy: Any, steps: int) -> None:
        """`steps` are those of an epoch."""
        self._network, self._strategy, self._job = network, strategy, job
        with strategy.scope():
            self.optimizer = users_optimizer(job.optimizer) if job.has_own_optimizer else keras_optimizer(job)
            self._base = self._own_rate() if job.has_own_optimizer and job.sets_rate else 1.0
        self._clips = self._share_clipping(strategy.num_replicas_in_sync)
        with strategy.scope() if self.on_servers else nullcontext():
            self._rates = GraphRates(job, network.dtype, steps)
        with strategy.scope():
            if job.rate_changes_within_epoch:
                self.optimizer.learning_rate = KerasRates(self._rates)
            self.optimizer.build(network.trainable)
            #: The moving averages of the weights, which are evaluated and saved in their place.
            self._averages = [] if job.ema is None else [
                tf.Variable(keras.ops.convert_to_numpy(variable)) for variable in network.trainable
            ]
        # Keras would assign the variables of a replica, which no strategy of several replicas allows.
        self._constraints = [variable.constraint for variable in network.trainable]
        for variable in network.trainable:
            variable.constraint = None
        # Each replica adds its share of what the optimizer sums.
        self._added_decay = added_decay(job) / strategy.num_replicas_in_sync

    def _own_rate(self) -> float:
        """The learning rate that the user's optimizer came with, which a schedule multiplies."""
        if isinstance(self.optimizer.get_config().get("learning_rate"), dict):
            raise BadRequest(
                f"--optimizer {self._job.optimizer!r} has a schedule of its own for the learning rate; leave out "
                "--schedule, --warmup, --decay and --scale-rate"
            )
        return float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))

    def _share_clipping(self, replicas: int) -> bool:
        """Whether the user's optimizer clips gradients. Keras clips before it sums over replicas: given equal shares of
        the sum, and bounds for a share, it clips the sum."""
        bounds = {name: getattr(self.optimizer, name) for name in ("clipnorm", "global_clipnorm", "clipvalue")}
        for name, bound in bounds.items():
            if bound:
                setattr(self.optimizer, name, bound / replicas)
        return any(bounds.values())

    def pull(self) -> list[tf.Tensor]:
        """The weights of each layer, as this replica sees them."""
        return [tf.convert_to_tensor(variable.value) for variable in self._network.trainable]

    def layers(self, pulled: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(pulled)

    def evaluated_layers(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(average) for average in self._averages] or self.pull()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, NotImplementedError) as error:
            if not self._job.has_own_optimizer:
                raise
            kind = type(self.optimizer).__name__
            raise BadRequest(
                f"--optimizer {self._job.optimizer!r}: Keras' {kind} cannot train under {self._job.strategy}: "
                f"{reason_of(error)}; choose another strategy or optimizer"
            ) from error

    def update(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor) -> None:
        """Sum a gradient over the replicas and apply it; Keras' optimizer counts its updates itself."""
        norm, by_total, replicas = self._job.clip_norm, self._network.by_total, self._strategy.num_replicas_in_sync
        if norm is not None or by_total or self._clips:
            # Keras clips before it sums over replicas. Summed here, the gradient is clipped as a whole; the optimizer
            # then sums equal shares of it.
            gradient = [tf.convert_to_tensor(piece) for piece in gradient]
            if replicas > 1:
                gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            if by_total:
                *gradient, total = gradient
                gradient = [over_total(piece, total) for piece in gradient]
            gradient = [piece / replicas for piece in clip_by_norm(gradient, norm)]
        self._apply_share(gradient)

    def _apply_share(self, gradient: Sequence[tf.Tensor]) -> None:
        """Apply the sum over the replicas of their gradients, which the optimizer makes. In a replica context."""
        dense = [tf.convert_to_tensor(piece) for piece in gradient]  # an embedding's gradient may be sparse
        if self._added_decay:
            dense = [piece + self._added_decay * now for piece, now in zip(dense, self.pull(), strict=True)]
        self.optimizer.apply(dense, self._network.trainable)
        if any(self._constraints):
            tf.distribute.get_replica_context().merge_call(self._constrain)
        if self._averages:
            tf.distribute.get_replica_context().merge_call(self._move_averages)

    def _constrain(self, strategy: Any) -> None:
        """Keep the weights within the bounds that their layers set, after an update; once for all replicas."""
        for variable, keep in zip(self._network.trainable, self._constraints, strict=True):
            if keep is not None:
                strategy.extended.update(
                    variable.value, lambda held, keep=keep: held.assign(keep(tf.convert_to_tensor(held))), group=False
                )

    def _move_averages(self, strategy: Any) -> None:
        """Move the averages towards the weights after an update; the first one copies them. Once for all replicas."""
        decay = self._job.ema or 0.0
        numbers = (tf.constant(number, self._network.dtype) for number in (1 - decay, 1.0))
        share = tf.where(self.optimizer.iterations.value > 1, *numbers)

        def move(average: tf.Variable, weights: tf.Tensor) -> None:
            average.assign_sub(share * (average - weights))

        for average, variable in zip(self._averages, self._network.trainable, strict=True):
            strategy.extended.update(average, move, args=(variable.value,), group=False)

    def set_rates(self, rates: NDArray[np.float64], before: int) -> None:
        if self._job.rate_changes_within_epoch:
            self._rates.set(self._base * rates, before)
        elif self._job.sets_rate or not self._job.has_own_optimizer:
            with self._strategy.scope():
                self.optimizer.learning_rate = self._base * float(rates[0])

    def _slots(self) -> list[list[Any]]:
        """The optimizer's variables of each kind, in the order of the weights: Keras interleaves the kinds."""
        others = [self.optimizer.iterations]
        if not self._job.rate_changes_within_epoch:
            others.append(self.optimizer.learning_rate)
        paths = [variable.path for variable in others if isinstance(variable, keras.Variable)]
        slots = [variable for variable in self.optimizer.variables if variable.path not in paths]
        if self._job.has_own_optimizer:  # it keeps what it likes
            return [[variable] for variable in slots]
        kinds = len(slots) // len(self._network.trainable)
        return [slots[kind::kinds] for kind in range(kinds)]

    def values(self) -> tuple[Array, list[Array]]:
        return _concatenated(self._network.trainable), [_concatenated(slot) for slot in self._slots()]

    def average(self) -> Array | None:
        return _concatenated(self._averages) if self._averages else None

    def assign(self, weights: Array, slots: Sequence[Array], iterations: int, average: Array | None) -> None:
        if average is not None:
            _assign(self._averages, average)
        for variables, values in zip([self._network.trainable, *self._slots()], [weights, *slots], strict=True):
            _assign(variables, values)
        self.optimizer.iterations.assign(iterations)


def _concatenated(variables: Sequence[Any]) -> Array:
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(variable)) for variable in variables])


def _assign(variables: Sequence[Any], values: Array) -> None:
    """Assign what `_concatenated` returned."""
    parts = np.split(values, np.cumsum([int(np.prod(variable.shape)) for variable in variables])[:-1])
    for variable, part in zip(variables, parts, strict=True):
        variable.assign(part.reshape(variable.shape))
