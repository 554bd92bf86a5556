"""sgd, momentum and adam: Velodrome's form, which calls PyTorch's fused kernels itself, and stock `torch.optim`.

Both are given the gradients of a step as a list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from velodrome.engines.torch.kernels import Kernels, Tensors, choose_kernels
from velodrome.spec.job import ADAM_BETAS, ADAM_EPSILON, MOMENTUM, Job

#: What an optimizer keeps of every parameter.
SLOTS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "square")}
#: The same by the names that `torch.optim` uses in its checkpoints.
_STOCK_SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq")
}


class Optimizer(ABC):
    """Changes tensors in place by their gradients, which must lie in memory as the tensors do."""

    #: The learning rate of the next step.
    rate: float
    #: Private functions of PyTorch that had to be replaced by public ones.
    missing: tuple[str, ...] = ()

    @abstractmethod
    def step(self, gradients: Tensors) -> None:
        """Make one step."""

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, by name; copying into these tensors restores it."""


class FusedOptimizer(Optimizer):
    """Calls the fused kernels directly, one call a step for all tensors."""

    def __init__(
        self, job: Job, tensors: Tensors, *, slots: Tensors | None = None, part: slice | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """`slots` are the state of a single tensor, zero and like it, where it must lie in memory given by the caller.
        With `part`, only that slice of the tensor is changed, and gradients are those of the slice."""
        self._kind, self.rate = job.optimizer, job.rate
        self._kernels = kernels or choose_kernels()
        self.missing = self._kernels.missing
        tensors = [tensor.detach() for tensor in tensors]
        names = SLOTS[job.optimizer]
        made = [[slot] for slot in slots] if slots else [[torch.zeros_like(each) for each in tensors] for _ in names]
        self._slots = dict(zip(names, made, strict=True))
        self._steps = torch.zeros((), dtype=torch.float32, device=tensors[0].device)
        self._tensors, self._stepped = tensors, self._slots
        if part is not None:
            self._tensors = [tensor[part] for tensor in tensors]
            self._stepped = {name: [slot[part] for slot in each] for name, each in self._slots.items()}

    @torch.no_grad()
    def step(self, gradients: Tensors) -> None:
        self._steps += 1
        tensors, slots = self._tensors, self._stepped
        if self._kind == "adam":
            self._kernels.adam(tensors, gradients, slots["mean"], slots["square"], self._steps, self.rate)
        elif self._kind == "momentum":
            self._kernels.momentum(tensors, gradients, slots["momentum"], self.rate)
        else:
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.add_(gradient, alpha=-self.rate)

    def state(self) -> dict[str, torch.Tensor]:
        slots = {f"{name}.{index}": slot for name, all_ in self._slots.items() for index, slot in enumerate(all_)}
        return {"steps": self._steps, **slots}


class StockOptimizer(Optimizer):
    """`torch.optim.SGD` or `torch.optim.Adam` with their defaults and the job's hyper-parameters."""

    def __init__(self, job: Job, parameters: list[torch.nn.Parameter]) -> None:
        self.rate, self._parameters = job.rate, parameters
        self._optimizer: torch.optim.Optimizer
        if job.optimizer == "adam":
            self._optimizer = torch.optim.Adam(parameters, lr=job.rate, betas=ADAM_BETAS, eps=ADAM_EPSILON)
        else:
            momentum = MOMENTUM if job.optimizer == "momentum" else 0.0
            self._optimizer = torch.optim.SGD(parameters, lr=job.rate, momentum=momentum)
        # `torch.optim` makes its state in the first step; a resumed run loads into it before that.
        slots = _STOCK_SLOTS[job.optimizer]
        begun = {"step": torch.zeros(())} if job.optimizer == "adam" else {}
        state = {
            index: {name: value.clone() for name, value in begun.items()}
            | {name: torch.zeros_like(parameter, requires_grad=False) for name in slots}
            for index, parameter in enumerate(parameters)
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state if slots else {}, "param_groups": groups})

    def step(self, gradients: Tensors) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate
        self._optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{index}": value
            for index, parameter in enumerate(self._parameters)
            for name, value in self._optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor)
        }


def make_optimizer(job: Job, parameters: list[torch.nn.Parameter]) -> Optimizer:
    """The optimizer of a job's implementation."""
    return StockOptimizer(job, parameters) if job.implementation == "stock" else FusedOptimizer(job, list(parameters))


@torch.no_grad()
def squared_norm(gradients: Tensors) -> float:
    """The sum of the squares of all numbers, in double precision: a float32 sum of millions loses four digits."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return float(torch.stack(norms).square().sum())


@torch.no_grad()
def clip(gradients: Tensors, norm: float, maximum: float) -> None:
    """Scale gradients of this norm down to the maximum, in place, if they exceed it."""
    if norm > maximum:
        for gradient in gradients:
            gradient.mul_(maximum / norm)
