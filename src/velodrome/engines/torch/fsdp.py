"""`fsdp`: PyTorch's `fully_shard` (FSDP2). Weights, gradients and the optimizer's state are divided over the processes;
a layer's weights are gathered when it computes, and freed afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import FusedOptimizer, Gradients, Optimizer, make_optimizer, squared_norm
from velodrome.engines.torch.process_group import ProcessGroup, translate_errors_of_collectives
from velodrome.engines.torch.sharding import (
    covers_of,
    distribute,
    local,
    place,
    shard,
    tensors_in,
    units_of,
    whole,
)
from velodrome.errors import BadRequest
from velodrome.tasks.counts import Counts
from velodrome.worker.learner import Part, State


class _Nothing(torch.autograd.Function):
    """A loss of zero whose gradients are zeros, even of outputs that are not finite."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor) -> torch.Tensor:
        ctx.like = outputs.new_zeros(()).expand(outputs.shape)
        return outputs.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        like: torch.Tensor = ctx.like
        return like


class FsdpLearner(TorchLearner):
    """One process's part of the network. All processes compute at the same time: each needs the parts of all others."""

    forward_together = True
    #: What the last forward pass in training was called with.
    _last: tuple[Any, ...] = ()
    _state: State | None = None

    def _make_optimizer(self) -> Optimizer:
        assert isinstance(self._transport, ProcessGroup)
        self._refuse_few_examples()
        mesh = DeviceMesh.from_group(self._transport.group, self._device.type)
        root = self._network.forward
        self._modules = shard(root, self._units(root), mesh, may_skip=not self._network.from_zoo)
        self._mark_waiting()
        root.register_forward_pre_hook(self._remember)
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        job = self._context.job
        if job.implementation == "stock" or job.has_own_optimizer:
            return make_optimizer(job, self._trained)
        return FusedOptimizer(job, [local(parameter) for parameter in self._trained])

    def _units(self, root: nn.Module) -> list[nn.Module]:
        """What is gathered by itself; processes divide a model in the same way, as rank 0 finds it possible."""
        network = self._network
        if network.from_zoo:
            return units_of(root)
        call = network.call or (lambda model: model(network.sample() if network.sample else None))
        covers = covers_of(self._model, call) if self._transport.rank == 0 else None
        names = {module: name for name, module in root.named_modules()}
        found = [] if covers is None else [names[unit] for unit in units_of(root, covers)]
        first, *_ = self.gather(json.dumps(found).encode())
        return [root.get_submodule(name) for name in json.loads(first)]

    def _refuse_few_examples(self) -> None:
        """Each process must take part in every evaluation."""
        data = self._context.data
        for part in ("validation", "test"):
            count = len(getattr(data, part))
            if 0 < count < self._transport.size:
                raise BadRequest(
                    f"--workers {self._transport.size}: {self._context.job.strategy} evaluates with all workers at the "
                    f"same time, and the {part} part has {count} examples; use fewer workers"
                )

    def _mark_waiting(self) -> None:
        """A module that begins waits for its weights from the others; what it then computes does not."""
        status = self._context.status

        def wait(*_: Any) -> None:
            status.waiting = True

        def go(*_: Any) -> None:
            status.waiting = False

        for module in self._modules:
            assert isinstance(module, nn.Module)
            module.register_forward_pre_hook(wait, prepend=True)
            module.register_forward_pre_hook(go)

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            self._last = inputs

    # -- training

    def train(self, first: int, last: int) -> Counts:
        with translate_errors_of_collectives():
            return super().train(first, last)

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        super().step(self._idle_loss() if loss is None else loss, batch)

    def _idle_loss(self) -> torch.Tensor:
        """The loss of a process without examples: it computes with those of its last step, for nothing."""
        if not self._last:
            raise BadRequest(
                f"--workers {self._transport.size}: a worker has no example in its first batch, and "
                f"{self._context.job.strategy} computes with all workers at the same time; use fewer workers, a larger "
                "batch or a smaller --accumulate"
            )
        outputs = [each for each in tensors_in(self.forward(*self._last)) if each.requires_grad]
        return torch.stack([_Nothing.apply(each) for each in outputs]).sum()

    def _will_add(self, more: bool) -> None:
        for module in self._modules:
            module.set_requires_gradient_sync(not more, recurse=False)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        assert loss is not None, "a process without examples has a loss of zero"
        with self._context.waiting():  # most of the pass computes, but where it blocks it waits for others
            found = self._local_gradients(loss)
        if isinstance(self._optimizer, FusedOptimizer):
            return [None if gradient is None else local(gradient) for gradient in found]
        return found

    def _norm(self, gradients: Gradients) -> float:
        pieces = [None if gradient is None else local(gradient) for gradient in gradients]
        return self.sum(squared_norm(pieces)) ** 0.5

    def evaluate(self, part: Part) -> Counts:
        with translate_errors_of_collectives():
            counts = super().evaluate(part)
        self._reshard()
        return counts

    def _reshard(self) -> None:
        """Free gathered weights: after a forward pass alone, some are kept for a backward pass."""
        for module in self._modules:
            module.reshard()

    # -- state

    def collect_model(self) -> None:
        self._reshard()
        with self._averaged():
            self._collected = self._put_together(dict(self._model.state_dict()))

    def collect_state(self) -> None:
        self._reshard()
        model = self._put_together(dict(self._model.state_dict()))
        optimizer = self._put_together(self._optimizer.state(), self._like)
        named = {f"model.{name}": value for name, value in model.items()}
        named |= {f"optimizer.{name}": value for name, value in optimizer.items()}
        self._state = {name: value.numpy() for name, value in named.items()}

    def _like(self, name: str) -> torch.Tensor | None:
        """The parameter that a part of the optimizer's state is divided like; None for what every process has."""
        kept, _, index = name.rpartition(".")
        return self._trained[int(index)] if kept and index.isdigit() else None

    def _put_together(
        self, tensors: dict[str, Any], like: Callable[[str], torch.Tensor | None] = lambda name: None
    ) -> dict[str, torch.Tensor]:
        """Whole tensors by name, in rank 0; nothing in the others, which take part."""
        found = {}
        with translate_errors_of_collectives():
            for name, value in tensors.items():
                if isinstance(value, torch.Tensor):
                    full = whole(value, like(name))
                    if self._transport.rank == 0:
                        found[name] = full.clone()
        return found

    def state(self) -> State:
        assert self._state is not None, "collected before"
        found, self._state = self._state, None
        return {**found, "epochs": np.array(self._epochs, dtype=np.int64)}

    def load(self, state: State) -> None:
        self._reshard()
        for name, target in self._model.state_dict().items():
            if (key := f"model.{name}") in state:
                place(target, torch.from_numpy(np.array(state[key])))
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
        divided = distribute(value, like)
        return local(divided) if isinstance(self._optimizer, FusedOptimizer) else divided
