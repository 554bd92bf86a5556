"""`fsdp`: `fully_shard` (FSDP2) of PyTorch. Weights, gradients and optimizer state are divided over the processes; a
layer gathers its weights when it computes, and frees them afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from velodrome.engines.torch.calling import tensors_in
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients, Optimizer
from velodrome.engines.torch.process_group import ProcessGroup
from velodrome.engines.torch.strategies.ddp import reached_from
from velodrome.engines.torch.strategies.sharding import DividedLearner, covers_of, local, shard, units_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job


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


class LockstepLearner(TorchLearner):
    """All processes compute at the same time, whether they have examples or not."""

    lockstep = True
    #: What the last forward pass in training was called with.
    _last: tuple[Any, ...] = ()

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

    def _remember_inputs(self, model: nn.Module) -> None:
        """Keep what the model is called with, for a step in which this process has no examples."""
        model.register_forward_pre_hook(self._remember)

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            self._last = inputs

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        super().step(self.idle_loss() if loss is None else loss, batch)

    def idle_loss(self) -> torch.Tensor:
        """The loss of a process without examples: it computes with those of its last step, for nothing."""
        if not self._last:
            raise BadRequest(
                f"--workers {self._transport.size}: a worker has no example in its first batch, and "
                f"{self._context.job.strategy} computes with all workers at the same time; use fewer workers, a larger "
                "batch or a smaller --accumulate"
            )
        outputs = [each for each in tensors_in(self.forward(*self._last)) if each.requires_grad]
        return torch.stack([_Nothing.apply(each) for each in outputs]).sum()


class ParameterUse:
    """For each parameter, whether a loss of any process depends on it in a step.

    A process knows that of its own loss before the backward pass, and those of all are summed during it.
    """

    def __init__(
        self, root: nn.Module, units: Iterable[nn.Module], trained: Sequence[nn.Parameter],
        group: distributed.ProcessGroup | None,
    ) -> None:
        """`root` was divided, with `units` that gather their weights by themselves, itself among them."""
        self._group = group
        numbers = {parameter: number for number, parameter in enumerate(trained)}
        self._places = [(module, name, numbers[parameter]) for module in root.modules()
                        for name, parameter in module._parameters.items() if parameter in numbers]
        #: The number of each parameter, by the whole one that the forward pass uses.
        self._numbers: dict[torch.Tensor, int] = {}
        self._mine, self._device = [0.0] * len(trained), local(trained[0]).device
        self._sent: tuple[torch.Tensor, Any] | None = None
        self._hooks = {unit: unit.register_forward_pre_hook(self._find_whole) for unit in units}

    def _find_whole(self, unit: nn.Module, inputs: Any) -> None:
        """Note the whole parameters: of this unit, all are gathered now. They stay the same objects in later calls."""
        for module, name, number in self._places:
            parameter = module._parameters[name]
            if parameter is not None and not isinstance(parameter, DTensor):
                self._numbers[parameter] = number
        self._hooks.pop(unit).remove()

    def add(self, loss: torch.Tensor) -> None:
        """Note what a loss of this process depends on."""
        for parameter in reached_from(loss):
            if (number := self._numbers.get(parameter)) is not None:
                self._mine[number] = 1.0

    def send(self) -> None:
        """Begin to sum what was noted since the last call; called in every process."""
        total, self._mine = torch.tensor(self._mine, device=self._device), [0.0] * len(self._mine)
        self._sent = total, distributed.all_reduce(total, group=self._group, async_op=True)

    def of_any(self) -> list[bool]:
        """For each parameter, whether any process has noted it."""
        assert self._sent is not None, "sent before"
        (total, work), self._sent = self._sent, None
        work.wait()
        return [count > 0 for count in total.tolist()]


class FsdpLearner(LockstepLearner, DividedLearner):
    """One process's part of the network: each needs the parts of all others to compute."""

    _transport: ProcessGroup
    #: Finds the parameters that a step skips, where it may skip some.
    _use: ParameterUse | None = None
    #: Whether the next loss is that of no examples.
    _is_idle = False

    def _make_optimizer(self) -> Optimizer:
        self._refuse_few_examples()
        grid = self._enter_mesh()
        mesh = DeviceMesh.from_group(self._transport.group, self._device.type) if grid is None else grid.mesh
        root = self._network.module
        self._modules = shard(root, self._units(root), mesh, may_skip=not self._network.from_zoo)
        self._mark_waiting()
        self._remember_inputs(root)
        optimizer = self._divided_optimizer()
        if not self._network.from_zoo and _steps_by_zeros(self._context.job):
            units = [module for module in self._modules if isinstance(module, nn.Module)]
            self._use = ParameterUse(root, units, self._trained, self._transport.group)
        return optimizer

    def _units(self, root: nn.Module) -> list[nn.Module]:
        """What is gathered by itself; processes divide a model in the same way, as rank 0 finds it possible."""
        network = self._network
        if network.from_zoo:
            return units_of(root)
        if network.saved_as["only_batch"] is not None:
            return []  # it is called once per that many examples, so not equally often in every process
        covers = covers_of(self._model, network.call_copy) if self._transport.rank == 0 else None
        names = {module: name for name, module in root.named_modules()}
        unit_names = [] if covers is None else [names[unit] for unit in units_of(root, covers)]
        first, *_ = self.gather(json.dumps(unit_names).encode())
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
        if self._use is not None:
            if not self._is_idle:
                self._use.add(loss)
            if self._added == 0:  # the last batch of a step
                self._use.send()
        self._is_idle = False
        super()._backward(loss)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        assert loss is not None, "a process without examples has a loss of zero"
        gradients = super()._gradients(loss)
        if self._use is None:
            return gradients
        with self._context.waiting():
            present = self._use.of_any()
        return [gradient if there else None for gradient, there in zip(gradients, present, strict=True)]

    def _release(self) -> None:
        for module in self._modules:
            module.reshard()


def _steps_by_zeros(job: Job) -> bool:
    """Whether an optimizer may change a parameter whose gradient is zero."""
    return job.optimizer != "sgd" or bool(job.decay_of_weights)
