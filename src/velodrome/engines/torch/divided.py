"""What strategies share whose parameters are divided over the processes: optimizer, norm, evaluation, and states that
are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import FusedOptimizer, Gradients, Optimizer, make_optimizer, squared_norm
from velodrome.engines.torch.process_group import Grid, grid_of, translate_errors_of_collectives
from velodrome.engines.torch.sharding import distribute, is_divided, local, place, whole
from velodrome.job.job import Mesh
from velodrome.tasks.counts import Counts
from velodrome.worker.learner import Part, State


class DividedLearner(TorchLearner):
    """Parameters are DTensors, of which this process has a part; or plain tensors, which all have."""

    _state: State | None = None
    #: Parameters whose rows are in another order than the model's, with that order.
    _orders: dict[torch.Tensor, torch.Tensor] = {}  # noqa: RUF012 (replaced, never changed)

    #: Of how many groups, each of which has the whole model, this process is in one.
    _groups = 1

    def _enter_mesh(self) -> Grid | None:
        """The job's mesh, if it has one; called in every process."""
        if self._context.job.mesh is None:
            return None
        mesh = Mesh.parse(self._context.job.mesh)
        self._groups = mesh.groups
        return grid_of(mesh, self._device.type)

    def _divided_optimizer(self) -> Optimizer:
        """The optimizer of the parameters as they are divided now."""
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        job = self._context.job
        if job.implementation == "stock" or job.has_own_optimizer:
            return make_optimizer(job, self._trained)
        return FusedOptimizer(job, [local(parameter) for parameter in self._trained])

    def _release(self) -> None:
        """Free what a forward pass keeps for a backward pass: called where none follows."""

    # -- training

    def train(self, first: int, last: int) -> Counts:
        with translate_errors_of_collectives():
            return super().train(first, last)

    def _backward(self, loss: torch.Tensor) -> None:
        with self._context.waiting():  # most of the pass computes, but where it blocks it waits for others
            super()._backward(loss)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        assert loss is not None, "every process has examples"
        found = self._local_gradients(loss)
        if isinstance(self._optimizer, FusedOptimizer):
            return [None if gradient is None else local(gradient, like)
                    for gradient, like in zip(found, self._trained, strict=True)]
        return found

    def _norm(self, gradients: Gradients) -> float:
        """Parts of all processes count, and what each of them has once."""
        parts: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for gradient, like in zip(gradients, self._trained, strict=True):
            if gradient is not None:
                (parts if is_divided(like) else others).append(local(gradient, like))
        squares = np.array([squared_norm(parts)])
        with self._context.waiting():
            self._transport.all_reduce(squares)
        return float(squares[0] / self._groups + squared_norm(others)) ** 0.5

    def evaluate(self, part: Part) -> Counts:
        with translate_errors_of_collectives():
            counts = super().evaluate(part)
        self._release()
        return counts

    # -- state

    def collect_model(self) -> None:
        self._release()
        for parameter in self._trained:
            parameter.grad = None  # the whole model needs the memory in rank 0
        with self._averaged():
            self._collected = self._put_together(dict(self._model.state_dict()), self._named)

    def collect_state(self) -> None:
        self._release()
        model = self._put_together(dict(self._model.state_dict()), self._named)
        optimizer = self._put_together(self._optimizer.state(), self._like)
        named = {f"model.{name}": value for name, value in model.items()}
        named |= {f"optimizer.{name}": value for name, value in optimizer.items()}
        self._state = {name: value.numpy() for name, value in named.items()}

    def _like(self, name: str) -> torch.Tensor | None:
        """The parameter that a part of the optimizer's state is divided like; None for what every process has."""
        kept, _, index = name.rpartition(".")
        return self._trained[int(index)] if kept and index.isdigit() else None

    def _named(self, name: str) -> torch.Tensor | None:
        """The parameter of the model with this name; None for a buffer."""
        return dict(self._model.named_parameters(remove_duplicate=False)).get(name)

    def _put_together(
        self, tensors: dict[str, Any], like: Callable[[str], torch.Tensor | None]
    ) -> dict[str, torch.Tensor]:
        """Whole tensors by name, in rank 0; nothing in the others, which take part. `like` finds the parameter that one
        is of."""
        found = {}
        with translate_errors_of_collectives():
            for name, value in tensors.items():
                if isinstance(value, torch.Tensor):
                    parameter = like(name)
                    full = whole(value, parameter)
                    if self._transport.rank == 0:
                        full = full.clone() if full.data_ptr() == local(value).data_ptr() else full
                        found[name] = self._ordered(full, parameter, back=True)
        return found

    def _ordered(self, value: torch.Tensor, parameter: torch.Tensor | None, *, back: bool = False) -> torch.Tensor:
        """A whole tensor in the order that this strategy has its rows in, or `back` in the model's."""
        order = None if parameter is None or value.shape != parameter.shape else self._orders.get(parameter)
        return value if order is None else value[torch.argsort(order) if back else order]

    def state(self) -> State:
        assert self._state is not None, "collected before"
        found, self._state = self._state, None
        return {**found, "epochs": np.array(self._epochs, dtype=np.int64)}

    def load(self, state: State) -> None:
        self._release()
        for name, target in self._model.state_dict().items():
            if (key := f"model.{name}") in state:
                place(target, self._ordered(torch.from_numpy(np.array(state[key])), self._named(name)))
        self._optimizer.load({
            name: self._piece(name, torch.from_numpy(np.array(value)))
            for key, value in state.items() if (name := key.removeprefix("optimizer.")) != key
        })
        self._epochs = int(state["epochs"])

    def _piece(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """What this process has of a part of the optimizer's state."""
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        like = self._trained[numbers[0]] if numbers and not name.startswith("group.") else None
        if like is None or value.shape != like.shape:
            return value
        divided = distribute(self._ordered(value, like), like)
        return local(divided) if isinstance(self._optimizer, FusedOptimizer) else divided
