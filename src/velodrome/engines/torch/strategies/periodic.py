"""`local-sgd` and `diloco`: every process trains by itself, and all of them combine their weights every few steps.

What is evaluated and saved is the mean of the processes' weights at that moment, whether or not a round ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from velodrome.catalog.engines.torch import SYNC_EVERY
from velodrome.engines.torch import model_file as saved
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.optimizer import Gradients
from velodrome.engines.torch.process_group import ProcessGroup, translate_peer_errors
from velodrome.job.optimization import OUTER_MOMENTUM, OUTER_RATE
from velodrome.training.context import Context
from velodrome.training.learner import State
from velodrome.transport.base import Transport

#: What the names of arrays of one process begin with in a checkpoint; its rank follows.
_WORKER = "worker."


class LocalSgdLearner(TorchLearner):
    """Steps by its own gradients; the weights of all processes are averaged every `sync_every` steps."""

    _transport: ProcessGroup

    def __init__(self, context: Context, network: Network, transport: Transport, device: torch.device) -> None:
        super().__init__(context, network, transport, device)
        # As under `ddp`: examples count the same, whichever process has how many of a batch.
        self.loss_factor = float(transport.size)
        self._every = SYNC_EVERY.of(self._context.job) or 1
        self._updates = 0
        #: For each parameter, whether the last loss of this process gave it a gradient.
        self._used = [network.from_zoo] * len(self._trained)
        self._begin_rounds()

    def _mean(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The means of tensors over all processes."""
        # PyTorch's function gives tensors other memory, and optimizers know that of the parameters: it gets copies.
        means = [tensor.detach().clone() for tensor in tensors]
        with self._context.waiting(), translate_peer_errors():
            average_parameters(iter(means), self._transport.group)
        return means

    # -- what differs between both

    def _begin_rounds(self) -> None:
        """Called when the weights of all processes are the same, at the beginning."""

    def _end_round(self) -> None:
        """Combine the weights of all processes."""
        self._copy(self._mean(self._trained))

    # -- training

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        """Those of this process alone. Without examples they are zeros, so that weight decay and momentum apply as
        in the other processes; a parameter that the model does not use has none here either."""
        if loss is None:
            return [torch.zeros_like(parameter) if used else None
                    for parameter, used in zip(self._trained, self._used, strict=True)]
        gradients = self._local_gradients(loss)
        self._used = [gradient is not None for gradient in gradients]
        return gradients

    def sum(self, number: float) -> float:
        """What a loss is divided by, for all processes: as if each had this one's, unless a round is one step. Asking
        the others would cost the message that a round saves."""
        return super().sum(number) if self._every == 1 else number * self._transport.size

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        super().step(loss, batch)
        if self._added:
            return
        self._updates += 1
        if self._updates % self._every == 0:
            self._end_round()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """With the mean of all processes' weights in place of this one's."""
        with super()._averaged():
            own = [parameter.detach().clone() for parameter in self._trained]
            self._copy(self._mean(self._trained))
            yield
            self._copy(own)

    @torch.no_grad()
    def _copy(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self._trained, values, strict=True):
            parameter.copy_(value)

    # -- state

    def collect_model(self) -> None:
        with self._averaged():
            self._collected = saved.weights_of(self._model) if self._transport.rank == 0 else None

    def collect_state(self) -> None:
        self.collect_model()
        states = self._transport.collect_states(_WORKER, self._own_state())
        if self._collected is not None:
            mean, self._collected = self._collected, None
            self._state = {**saved.to_arrays("model.", mean), "updates": np.array(self._updates, np.int64), **states}

    def load(self, state: State) -> None:
        prefix = f"{_WORKER}{self._transport.rank}."
        mine = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        super().load({**mine, "epochs": state["epochs"]})
        self._updates = int(state["updates"])


class DilocoLearner(LocalSgdLearner):
    """Distributed low-communication training (Douillard et al., 2023, arXiv 2311.08105): after each round, the mean of
    what the processes' weights have changed by is the gradient of one step of an outer SGD with Nesterov momentum."""

    def _begin_rounds(self) -> None:
        self._outer = [parameter.detach().clone().requires_grad_() for parameter in self._trained]
        self._outer_optimizer = torch.optim.SGD(self._outer, lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)

    @torch.no_grad()
    def _end_round(self) -> None:
        changes = [outer - mine for outer, mine in zip(self._outer, self._trained, strict=True)]
        for outer, change in zip(self._outer, self._mean(changes), strict=True):
            outer.grad = change
        self._outer_optimizer.step()
        self._outer_optimizer.zero_grad()
        self._copy(self._outer)

    def collect_state(self) -> None:
        super().collect_state()
        if self._state is not None:
            self._state |= saved.to_arrays("", self._outer_state())  # the same in every process

    def _outer_state(self) -> dict[str, torch.Tensor]:
        held = self._outer_optimizer.state
        speeds = {f"outer_momentum.{index}": held[outer]["momentum_buffer"] for index, outer in enumerate(self._outer)
                  if held[outer].get("momentum_buffer") is not None}
        return {f"outer.{index}": outer for index, outer in enumerate(self._outer)} | speeds

    @torch.no_grad()
    def load(self, state: State) -> None:
        super().load(state)
        for index, outer in enumerate(self._outer):
            outer.copy_(torch.from_numpy(np.array(state[f"outer.{index}"])))
            if (name := f"outer_momentum.{index}") in state:
                speed = torch.from_numpy(np.array(state[name])).to(outer.device)
                self._outer_optimizer.state[outer]["momentum_buffer"] = speed
