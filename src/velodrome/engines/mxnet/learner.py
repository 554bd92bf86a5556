"""The network in training under MXNet: optimizer, store, counts, checkpoints; images and text feed it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon
from numpy.typing import NDArray

from velodrome.job.job import Job
from velodrome.job.optimization import MOMENTUM
from velodrome.tasks.base import Counts
from velodrome.training.context import Context
from velodrome.training.learner import State, Values, ZooLearner
from velodrome.transport.base import Transport


class MxnetLearner(ZooLearner):
    """One worker's copy of the network.

    Under bsp the servers sum the gradients, and every worker makes the same update. Under asp the servers update the
    weights by each gradient as it comes, and a worker continues with what they are then. A step of asp is one worker's:
    worker r makes every n-th of the epoch's steps.
    """

    engine, loaded = "mxnet", "network"

    def __init__(self, context: Context, transport: Transport, store: Any) -> None:
        super().__init__(context, transport)
        self._store = store
        self._alone, self._filled = store is None, False
        self._synchronous = context.strategy.synchronous
        job = context.job
        self._network = self._build()
        self._named: dict[str, Any] = self._network.parameters_by_name()
        shapes = {name: parameter.shape for name, parameter in self._named.items()}
        for name, value in self.initial_values(shapes).items():
            self._named[name].set_data(mx.nd.array(value, dtype=job.weights_dtype))
        trained = {name: parameter for name, parameter in self._named.items() if parameter.grad_req != "null"}
        self._trained = list(trained.values())
        self.parameters = sum(int(np.prod(parameter.shape)) for parameter in self._trained)
        self._network.hybridize(static_alloc=True)
        self._counting = self._with_loss()
        self._counting.hybridize(static_alloc=True)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self._rate: float | None = None
        self._next_rates: NDArray[np.float64] | None = None
        #: Under asp, what this worker counted in the epoch.
        self._counted = Counts()
        self._start(updates=0)

    def _start(self, updates: int) -> None:
        """A new optimizer that continues after this many updates; servers get the weights of worker 0, and under asp
        the optimizer too."""
        self._updates = updates
        self._optimizer = make_optimizer(self._context.job, updates)
        self._updater = mx.optimizer.get_updater(self._optimizer)

    def _fill_store(self) -> None:
        """Under asp the servers hold the weights, under bsp the sum of the gradients; all workers begin alike."""
        if self._alone or self._filled:
            return
        self._filled = True
        with self._context.waiting():
            for key, parameter in enumerate(self._trained):
                self._store.init(key, parameter.data())
                self._store.pull(key, out=parameter.data())
            if not self._synchronous:
                if self._transport.rank == 0:
                    self._optimizer.lr = self._rate
                self._store.set_optimizer(self._optimizer)
            mx.nd.waitall()
            self._transport.barrier()

    # -- what images and text define

    @abstractmethod
    def _build(self) -> Any:
        """The job's network with the weights that its seed decides."""

    @abstractmethod
    def _with_loss(self) -> Any:
        """The network with its loss as one block, which is compiled as a whole for training."""

    @abstractmethod
    def _train_step(self, step: int) -> Callable[[], Counts]:
        """Queue the gradients of this worker's examples of a step, divided by the whole batch; returns what waits for
        their loss and counts them."""

    # -- training

    def set_rate(self, rate: float) -> None:
        self._rate = rate
        self._optimizer.set_learning_rate(rate)

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._next_rates = rates if (rates != rates[0]).any() else None
        self.set_rate(float(rates[0]))

    def train(self, first: int, last: int) -> Counts:
        self._fill_store()
        counts = Counts()
        for step in range(first, last):
            if not self._synchronous and step % self._transport.size != self._transport.rank:
                continue
            if self._next_rates is not None:
                self.set_rate(float(self._next_rates[step]))
            count = self._train_step(step)
            self._update()
            # The loss has seen the weights of the step before, which came from the servers; those of this step arrive
            # while the next batch is prepared.
            with self._waiting():
                new = count()
            counts, self._counted = counts + new, self._counted + new
        with self._waiting():
            mx.nd.waitall()
        return counts

    def _waiting(self) -> AbstractContextManager[None]:
        """Mark a wait for what other processes take part in."""
        return nullcontext() if self._alone else self._context.waiting()

    def _update(self) -> None:
        """Queue the update of the weights by the gradients of this worker, or of all."""
        gradients = [parameter.grad() for parameter in self._trained]
        self._updates += 1
        if not self._synchronous:
            self._clip(gradients)
        if not self._alone:
            for key, (parameter, gradient) in enumerate(zip(self._trained, gradients, strict=True)):
                # In one message each way, as Gluon's own Trainer does it.
                received = gradient if self._synchronous else parameter.data()
                self._store.pushpull(key, gradient, out=received, priority=-key)
        if self._synchronous:
            self._clip(gradients)
            for key, (parameter, gradient) in enumerate(zip(self._trained, gradients, strict=True)):
                self._updater(key, gradient, parameter.data())

    def _clip(self, gradients: list[Any]) -> None:
        """Clip the gradient to a norm; written out, because Gluon's own function fails with float64."""
        limit = self._context.job.clip_norm
        if limit is None:
            return
        with self._waiting():
            norm = math.sqrt(sum(float((gradient * gradient).sum().asscalar()) for gradient in gradients))
        if norm > limit:
            for gradient in gradients:
                gradient *= limit / norm

    def agree(self, number: int) -> int:
        """Under asp a worker decides for itself: it waits for no other before the end of an epoch."""
        return super().agree(number) if self._synchronous else number

    def end_epoch(self) -> Counts:
        """Under asp, what the other workers counted, in the chief: it reports for all. Every worker then has the
        weights after the updates of all of them: what it evaluates and saves would miss the last ones otherwise."""
        mx.nd.waitall()
        if self._synchronous:
            return Counts()
        of_others = super().total(Counts() if self._context.is_chief else self._counted)
        self._counted = Counts()
        if not self._alone:
            with self._context.waiting():
                for key, parameter in enumerate(self._trained):
                    self._store.pull(key, out=parameter.data(), priority=-key)
                mx.nd.waitall()
        return of_others if self._context.is_chief else Counts()

    def total(self, counts: Counts) -> Counts:
        """Under asp the chief's counts are those of all (`end_epoch`)."""
        return super().total(counts if self._synchronous or self._context.is_chief else Counts())

    # -- what is stored

    def _saved_tensors(self) -> Values:
        return {name: parameter.data().asnumpy() for name, parameter in self._named.items()}

    def state(self) -> State:
        """Under asp without the optimizer's state, which MXNet's servers keep to themselves."""
        slots = {
            f"optimizer.{key}.{number}": slot.asnumpy()
            for key, kept in self._updater.states.items() for number, slot in enumerate(_slots(kept))
        }
        return {**self._saved_tensors(), **slots, "optimizer.updates": np.array(self._updates)}

    def load(self, state: State) -> None:
        for name, parameter in self._named.items():
            parameter.set_data(mx.nd.array(state[name], dtype=self._context.job.weights_dtype))
        # Under asp the servers' optimizer starts again, and with it the count by which Adam corrects its first steps.
        self._start(int(state["optimizer.updates"]) if self._synchronous else 0)
        if not self._synchronous:
            return
        for key, parameter in enumerate(self._trained):
            kept = self._optimizer.create_state_multi_precision(key, parameter.data())
            for number, slot in enumerate(_slots(kept)):
                slot[:] = mx.nd.array(state[f"optimizer.{key}.{number}"], dtype=slot.dtype)
            self._updater.states[key], self._updater.states_synced[key] = kept, True

    def close(self) -> None:
        super().close()
        # MXNet's servers end when the stores of all workers are gone.
        self._store = None


def _slots(kept: Any) -> list[Any]:
    """The arrays of an optimizer's state for one parameter."""
    if kept is None:
        return []
    return list(kept) if isinstance(kept, tuple | list) else [kept]


def make_optimizer(job: Job, updates: int = 0) -> Any:
    """The job's optimizer after this many updates; its learning rate is set before every epoch."""
    # Gradients arrive divided by the batch.
    plain: dict[str, Any] = {"learning_rate": job.rate, "wd": 0.0, "rescale_grad": 1.0, "begin_num_update": updates}
    if job.optimizer == "sgd":
        return mx.optimizer.SGD(**plain)
    if job.optimizer == "momentum" and job.nesterov:
        return mx.optimizer.NAG(momentum=MOMENTUM, **plain)
    if job.optimizer == "momentum":
        return mx.optimizer.SGD(momentum=MOMENTUM, **plain)
    assert job.optimizer == "adam", "others are refused before anything starts"
    return mx.optimizer.Adam(**plain)
