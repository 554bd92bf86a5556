"""The network in training under JAX: one compiled loop over steps, counts, checkpoints; images and text feed it."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from velodrome.engines.jax.mesh import AXIS, Arrays, Division, Values, in_all, in_each, local, over
from velodrome.errors import PeerLost, headline
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.training.context import Context
from velodrome.training.learner import State, ZooLearner
from velodrome.transport.base import Transport

_LOST = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|socket|peer|unavailable", re.IGNORECASE)


class Trained(NamedTuple):
    """What a step changes, on the mesh."""

    weights: Arrays
    #: Of every process by itself: a first axis goes through the processes.
    buffers: Arrays
    optimizer: Any
    #: The moving average of the weights; empty without one.
    average: Arrays
    updates: jax.Array


class Forward(NamedTuple):
    """What a forward pass of one step returns, beside the summed loss."""

    right: jax.Array
    buffers: Arrays
    #: What the next step takes over: the state of the rows of a text.
    carried: Any


class JaxLearner(ZooLearner):
    """One process's part of a network that all processes train by the same compiled loop over a mesh of them."""

    engine, loaded = "jax", "apply, tensors"

    def __init__(self, context: Context, transport: Transport, mesh: Mesh) -> None:
        super().__init__(context, transport)
        self._mesh, job = mesh, context.job
        self._dtype = job.weights_dtype
        self._network = self._build()
        weights, self._buffer_names = dict(self._network.weights), [*self._network.buffers]
        values: Values = {**weights, **self._network.buffers}
        given = self.initial_values({name: value.shape for name, value in values.items()})
        values |= {name: value.astype(self._dtype) for name, value in given.items()}
        self.parameters = sum(value.size for value in weights.values())
        shapes = {name: value.shape for name, value in weights.items()}
        self._division = Division(shapes, mesh, divided=job.strategy == "fsdp")
        self._optimizer = make_optimizer(job)
        self._trained = self._initial(values)
        self._collected: Values | None = None

    def _initial(self, values: Values) -> Trained:
        """Training from these weights on, with a new optimizer."""
        division = self._division
        weights = division.place(values)
        shapes = jax.eval_shape(self._optimizer.init, weights)
        self._optimizer_specs = jax.tree.map(lambda array: division.spec if array.ndim else P(), shapes)
        begin = jax.jit(over(self._mesh, self._optimizer.init, (division.spec,), self._optimizer_specs))
        return Trained(
            weights, self._placed_buffers(values), begin(weights),
            division.place(values) if self._context.job.ema is not None else {}, in_all(self._mesh, np.int32(0)),
        )

    def _placed_buffers(self, values: Values) -> Arrays:
        return {name: in_each(self._mesh, np.asarray(values[name])[None]) for name in self._buffer_names}

    # -- what images and text define

    @abstractmethod
    def _build(self) -> Any:
        """The job's network with the weights that its seed decides."""

    @abstractmethod
    def _loss(self, tensors: Arrays, carried: Any, feed: Any, step: jax.Array) -> tuple[jax.Array, Forward]:
        """The summed loss of this process's examples of a step."""

    @abstractmethod
    def _first_feed(self) -> tuple[Any, Any, Any]:
        """What the first steps of the epoch that has begun carry on, are fed with and share, as `_run` takes them."""

    @abstractmethod
    def _prepare_evaluation(self) -> None:
        """Evaluate something, so that it is compiled."""

    # -- the compiled loop

    def _steps(
        self, trained: Trained, own: Any, feed: Any, shared: Any, first: jax.Array, last: jax.Array
    ) -> tuple[Trained, Any]:
        """Train the steps from `first` up to, not including, `last`, as one process does. `own` is what each of them
        changes beside the weights: what it carries on, the loss of every step, and how many answers were right. `feed`
        is what this process trains on, `shared` the batch and learning rate of every step."""
        job, division = self._context.job, self._division
        (carried, losses, right), feed = jax.tree.map(lambda array: array[0], (own, feed))
        batch, rates = shared

        def step(number: jax.Array, loop: Any) -> Any:
            now, carried, losses, right = loop
            buffers = {name: array[0] for name, array in now.buffers.items()}

            def mean_loss(weights: Arrays) -> tuple[jax.Array, tuple[jax.Array, Forward]]:
                summed, forward = self._loss({**weights, **buffers}, carried, feed, number)
                return summed / batch[number], (summed, forward)

            gradients, (summed, forward) = jax.grad(mean_loss, has_aux=True)(division.whole(now.weights))
            gradients = division.summed(gradients)
            if job.clip_norm is not None:
                factor = jnp.minimum(1.0, job.clip_norm / division.norm(gradients)).astype(summed.dtype)
                gradients = {name: array * factor for name, array in gradients.items()}
            changes, optimizer = self._optimizer.update(gradients, now.optimizer, now.weights)
            weights = {name: array - rates[number] * changes[name] for name, array in now.weights.items()}
            # The first update of the average copies.
            weight = jnp.where(now.updates == 0, 1.0, 1.0 - (job.ema or 0.0)).astype(summed.dtype)
            average = {name: array + weight * (weights[name] - array) for name, array in now.average.items()}
            changed = {name: array[None] for name, array in {**buffers, **forward.buffers}.items()}
            after = Trained(weights, changed, optimizer, average, now.updates + 1)
            return after, forward.carried, losses.at[number].set(summed), right.at[number].set(forward.right)

        begin = (trained, carried, losses, right)
        trained, *own = lax.fori_loop(first, last, step, begin) if self._network.loops else step(first, begin)
        return trained, jax.tree.map(lambda array: array[None], tuple(own))

    def prepare(self) -> None:
        """Compile what training and evaluation call, which takes seconds; no process begins before all have it."""
        context = self._context
        if context.saved_model is None:
            self.begin_epoch(context.task.schedule(context.job, context.data, 1))
            carried, feed, shared = self._first_feed()
            self._compiled = self._compile(
                self._trained, self._own(carried, shared), feed, shared, np.int32(0), np.int32(1)
            )
        self._prepare_evaluation()
        with context.waiting():
            self._transport.barrier()

    def _compile(self, *arguments: Any) -> Any:
        """The steps for arguments like these."""
        specs = Trained(self._division.spec, P(AXIS), self._optimizer_specs, self._division.spec, P())
        each = P(AXIS)
        loop = over(self._mesh, self._steps, (specs, each, each, P(), P(), P()), (specs, each))
        return jax.jit(loop, donate_argnums=(0, 1)).lower(*arguments).compile()

    def _own(self, carried: Any, shared: Any) -> Any:
        """What the steps of a call change beside the weights."""
        steps = len(shared[0])
        return (carried, *(in_each(self._mesh, np.zeros((1, steps), kind)) for kind in (self._dtype, np.int32)))

    def _run(self, carried: Any, feed: Any, shared: Any, first: int, last: int) -> tuple[Any, jax.Array, jax.Array]:
        """Start the steps of a call; what they carry on, and losses and right answers, which may not be there yet."""
        own = self._own(carried, shared)
        for begin, end in ((first, last),) if self._network.loops else pairwise(range(first, last + 1)):
            self._trained, own = self._compiled(self._trained, own, feed, shared, np.int32(begin), np.int32(end))
        return own

    @contextmanager
    def _waiting_for_others(self) -> Iterator[None]:
        """Mark a block that waits where other processes are late, and report a lost one; most of it computes."""
        self._context.status.waiting = self._transport.size > 1
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if self._transport.size > 1 and _LOST.search(str(error)):
                raise PeerLost(f"lost another worker: {headline(str(error))}") from error
            raise
        finally:
            self._context.status.waiting = False

    # -- training

    def _rates_of(self, steps: int) -> NDArray[Any]:
        """The learning rates of an epoch's steps; the last one again, where there are fewer."""
        rates: NDArray[Any] = self._rates[np.minimum(np.arange(steps), len(self._rates) - 1)]
        return rates.astype(self._dtype)

    def average_statistics(self) -> None:
        if not self._buffer_names or self._transport.size == 1:
            return
        values = {name: np.array(local(array)[0], np.float64) for name, array in self._trained.buffers.items()}
        flat = self.sum_vector(np.concatenate([value.ravel() for value in values.values()])) / self._transport.size
        pieces = np.split(flat, np.cumsum([value.size for value in values.values()])[:-1])
        means = {
            name: piece.reshape(value.shape).astype(self._dtype)
            for (name, value), piece in zip(values.items(), pieces, strict=True)
        }
        self._trained = self._trained._replace(buffers=self._placed_buffers(means))

    def _evaluated(self) -> Arrays:
        """The tensors to evaluate with, all of them on this process's device; called in lockstep."""
        weights = self._trained.average or self._trained.weights
        if self._division.divided:
            with self._waiting_for_others():
                return {**self._division.collect(weights), **self._buffers()}
        return {**{name: local(array) for name, array in weights.items()}, **self._buffers()}

    def _buffers(self) -> Arrays:
        return {name: local(array)[0] for name, array in self._trained.buffers.items()}

    # -- what is stored

    def collect_model(self) -> None:
        self._collected = {name: np.array(array) for name, array in self._evaluated().items()}

    def collect_state(self) -> None:
        trained, collect = self._trained, self._division.collect
        with self._waiting_for_others():
            state: State = dict(collect(trained.weights))
            state |= {name: np.array(array) for name, array in self._buffers().items()}
            if trained.average:
                state |= {f"average.{name}": value for name, value in collect(trained.average).items()}
            for index, kept in enumerate(_leaves(trained.optimizer)):
                values = collect(kept) if isinstance(kept, dict) else {"": np.array(local(kept))}
                state |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        self._state = {**state, "updates": np.array(local(trained.updates))}

    def state(self) -> State:
        return self._state

    def load(self, state: State) -> None:
        place, kept = self._division.place, []
        for index, like in enumerate(_leaves(self._trained.optimizer)):
            values = _below(state, f"optimizer.{index}.")
            kept.append(place(values) if isinstance(like, dict) else in_all(self._mesh, values[""].astype(like.dtype)))
        structure = jax.tree.structure(self._trained.optimizer, is_leaf=_is_dict)
        averages = _below(state, "average.")
        self._trained = Trained(
            place(state), self._placed_buffers(state), jax.tree.unflatten(structure, kept),
            place(averages) if averages else {}, in_all(self._mesh, np.int32(state["updates"])),
        )

    def _saved_tensors(self) -> Values:
        assert self._collected is not None
        return self._collected


def _below(state: State, prefix: str) -> Values:
    """What a state has under names with a prefix, by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _leaves(optimizer: Any) -> list[Any]:
    """The parts of an optimizer's state: numbers, and values for each weight by name."""
    return jax.tree.leaves(optimizer, is_leaf=_is_dict)


def make_optimizer(job: Job) -> optax.GradientTransformation:
    """What turns gradients into the step that is subtracted, for a learning rate of 1."""
    adam = optax.scale_by_adam(*ADAM_BETAS, eps=1e-8)
    if job.optimizer == "adamw":
        return optax.chain(adam, optax.add_decayed_weights(job.decay_of_weights))
    kinds = {"sgd": optax.identity(), "momentum": optax.trace(MOMENTUM, nesterov=job.nesterov), "adam": adam}
    chosen = kinds[job.optimizer]
    return optax.chain(optax.add_decayed_weights(job.decay_of_weights), chosen) if job.decay_of_weights else chosen
