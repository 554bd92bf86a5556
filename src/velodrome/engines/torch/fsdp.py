"""`fsdp`: PyTorch's `fully_shard` (FSDP2). Weights, gradients and the optimizer's state are divided over the processes;
a layer's weights are gathered when it computes, and freed afterwards."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from velodrome.engines.torch.divided import DividedLearner
from velodrome.engines.torch.optimizer import Gradients, Optimizer
from velodrome.engines.torch.presence import Presence
from velodrome.engines.torch.process_group import ProcessGroup
from velodrome.engines.torch.sharding import covers_of, shard, units_of
from velodrome.engines.torch.together import TogetherLearner
from velodrome.job.job import Job


class FsdpLearner(TogetherLearner, DividedLearner):
    """One process's part of the network: each needs the parts of all others to compute."""

    #: Finds the parameters that a step skips, where it may skip some.
    _presence: Presence | None = None
    #: Whether the next loss is that of no examples.
    _is_idle = False

    def _make_optimizer(self) -> Optimizer:
        assert isinstance(self._transport, ProcessGroup)
        self._refuse_few_examples()
        grid = self._enter_mesh()
        mesh = DeviceMesh.from_group(self._transport.group, self._device.type) if grid is None else grid.mesh
        root = self._network.forward
        self._modules = shard(root, self._units(root), mesh, may_skip=not self._network.from_zoo)
        self._mark_waiting()
        self._remember_inputs(root)
        optimizer = self._divided_optimizer()
        if not self._network.from_zoo and _steps_by_zeros(self._context.job):
            units = [module for module in self._modules if isinstance(module, nn.Module)]
            self._presence = Presence(root, units, self._trained, self._transport.group)
        return optimizer

    def _units(self, root: nn.Module) -> list[nn.Module]:
        """What is gathered by itself; processes divide a model in the same way, as rank 0 finds it possible."""
        network = self._network
        if network.from_zoo:
            return units_of(root)
        if network.saved_as["only_batch"] is not None:
            return []  # it is called once for each so many examples, and not as often in every process
        covers = covers_of(self._model, network.call_copy) if self._transport.rank == 0 else None
        names = {module: name for name, module in root.named_modules()}
        found = [] if covers is None else [names[unit] for unit in units_of(root, covers)]
        first, *_ = self.gather(json.dumps(found).encode())
        return [root.get_submodule(name) for name in json.loads(first)]

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

    # -- training

    def _will_add(self, more: bool) -> None:
        for module in self._modules:
            module.set_requires_gradient_sync(not more, recurse=False)

    def idle_loss(self) -> torch.Tensor:
        self._is_idle = True  # it depends on parameters, but for no example
        return super().idle_loss()

    def _backward(self, loss: torch.Tensor) -> None:
        if self._presence is not None:
            if not self._is_idle:
                self._presence.add(loss)
            if self._added == 0:  # the last batch of a step
                self._presence.send()
        self._is_idle = False
        super()._backward(loss)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        assert loss is not None, "a process without examples has a loss of zero"
        found = super()._gradients(loss)
        if self._presence is None:
            return found
        with self._context.waiting():
            present = self._presence.of_any()
        return [gradient if there else None for gradient, there in zip(found, present, strict=True)]

    def _release(self) -> None:
        for module in self._modules:
            module.reshard()


def _steps_by_zeros(job: Job) -> bool:
    """Whether an optimizer may change a parameter whose gradient is zero."""
    return job.optimizer != "sgd" or bool(job.decay_of_weights)
