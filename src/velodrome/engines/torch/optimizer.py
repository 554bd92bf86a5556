"""sgd, momentum, adam and adamw: Velodrome's form, which calls PyTorch's fused kernels itself, and stock `torch.optim`.

All are given the gradients of a step as a list. A parameter without a gradient is skipped, as `torch.optim` does:
neither it nor its momentum changes, and Adam does not count the step for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from velodrome.catalog.engines.torch import FUSED_OPTIMIZER, PLAIN_OPTIMIZER, STOCK_OPTIMIZER
from velodrome.engines.torch.average import WeightAverage, average_of
from velodrome.engines.torch.kernels import ADAM_EPSILON, Kernels, Tensors, choose_kernels
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.worker.context import Context

#: What another library puts around an optimizer of `torch.optim`, which offers the same.
Wrap = Callable[[torch.optim.Optimizer], Any]
#: The gradient of each parameter; None where a parameter got none.
Gradients = Sequence[torch.Tensor | None]

#: What an optimizer keeps of every parameter.
SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum",), "adam": ("mean", "square"), "adamw": ("mean", "square")
}
#: The same by the names that `torch.optim` uses in its checkpoints.
STOCK_SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")
}


class Optimizer(ABC):
    """Changes tensors in place by their gradients, which must lie in memory as the tensors do."""

    #: The learning rate of the next step.
    rate: float
    #: Private functions of PyTorch that had to be replaced by public ones.
    missing: tuple[str, ...] = ()
    #: The moving average of the tensors that this process steps; None if the job asks for none.
    average: WeightAverage | None = None

    @abstractmethod
    def step(self, gradients: Gradients) -> None:
        """Make one step."""

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, by name; copying into these tensors, then `restored`, restores
        it."""

    @property
    def whole_average(self) -> WeightAverage | None:
        """The moving average of all parameters, whichever process steps them."""
        return self.average

    @torch.no_grad()
    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from what `state` returned, in this process or another."""
        places = self.state()
        for name, value in state.items():
            if name in places:
                places[name].copy_(value)
        if self.average is not None:
            self.average.restored()


class FusedOptimizer(Optimizer):
    """Calls the fused kernels directly, one call a step for all tensors that have a gradient."""

    def __init__(
        self, job: Job, tensors: Tensors, *, slots: Tensors | None = None, parameters: int | None = None,
        kernels: Kernels | None = None, averaged: bool = True,
    ) -> None:
        """`slots` are the state of a single tensor, zero and like it, where it must lie in memory given by the caller.
        `parameters` is how many there are, if it is not one per tensor. Without `averaged`, the caller makes the
        average."""
        self._kind, self.rate = job.optimizer, job.rate
        self._decay, self._nesterov = job.decay_of_weights, job.nesterov
        self._kernels = kernels or choose_kernels(decoupled=job.optimizer == "adamw")
        self.missing = self._kernels.missing
        self._tensors = [tensor.detach() for tensor in tensors]
        names = SLOTS[job.optimizer]
        made = [[slot] for slot in slots] if slots else [[torch.zeros_like(each) for each in tensors] for _ in names]
        self._slots = dict(zip(names, made, strict=True))
        #: How many steps each parameter has made. Loading a single number, as older checkpoints have it, sets all.
        self._steps = torch.zeros(parameters or len(tensors), dtype=torch.float32, device=tensors[0].device)
        self._counters = list(self._steps.unbind())
        self.average = average_of(job, tensors) if averaged else None

    @torch.no_grad()
    def step(self, gradients: Gradients) -> None:
        self._step(gradients)
        if self.average is not None:
            self.average.update()

    def _step(self, gradients: Gradients) -> None:
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return
        tensors, slots, counters = self._tensors, list(self._slots.values()), self._counters
        if len(given) == len(tensors):
            self._steps += 1
        else:
            chosen = [index for index, gradient in enumerate(gradients) if gradient is not None]
            self._steps[chosen] += 1
            tensors, counters, *slots = ([each[index] for index in chosen] for each in (tensors, counters, *slots))
        self._apply(tensors, given, slots, counters)

    def _apply(self, tensors: Tensors, gradients: Tensors, slots: list[Tensors], counters: Tensors) -> None:
        """Change tensors and their slots by gradients; the counters already count this step."""
        if self._kind in ("adam", "adamw"):
            self._kernels.adam(tensors, gradients, slots[0], slots[1], counters, self.rate, self._decay)
        elif self._kind == "momentum":
            self._kernels.momentum(tensors, gradients, slots[0], self.rate, self._decay, self._nesterov)
        else:
            for tensor, gradient in zip(tensors, gradients, strict=True):
                if self._decay:
                    tensor.mul_(1 - self.rate * self._decay)
                tensor.add_(gradient, alpha=-self.rate)

    def state(self) -> dict[str, torch.Tensor]:
        slots = {f"{name}.{index}": slot for name, all_ in self._slots.items() for index, slot in enumerate(all_)}
        return {"steps": self._steps, **slots, **(self.average.state() if self.average else {})}


class FlatOptimizer(FusedOptimizer):
    """The same for parameters that lie in one flat tensor, or for the part of it that this process steps.

    The flat tensor is stepped as one until a parameter has no gradient; from then on each parameter is stepped apart,
    because they have made different numbers of steps.
    """

    #: For each parameter, whether it has a gradient in the next step; None if all have.
    present: Sequence[bool] | None = None

    def __init__(
        self, job: Job, weights: torch.Tensor, bounds: Sequence[tuple[int, int]], *, slots: Tensors | None = None,
        part: slice | None = None,
    ) -> None:
        """`bounds` are start and end of each parameter in the flat tensor. Gradients are those of the part. With
        `--ema`, the last of the slots is the average."""
        rows = [*(slots or ())]
        average = [rows.pop()] if rows and job.ema is not None else []
        super().__init__(job, [weights], slots=rows, parameters=len(bounds), averaged=False)
        low, high, _ = (part or slice(None)).indices(len(weights))
        stepped = [weights.detach()[low:high], *(each[0][low:high] for each in self._slots.values())]
        self._whole = [[each] for each in stepped]
        #: What each parameter has of the part: where it lies, and its weights and slots; by number.
        self._cuts = {
            number: slice(max(start, low) - low, min(end, high) - low)
            for number, (start, end) in enumerate(bounds) if max(start, low) < min(end, high)
        }
        self._pieces = {number: [each[cut] for each in stepped] for number, cut in self._cuts.items()}
        #: Whether all parameters have made the same number of steps.
        self._even = True
        if job.ema is not None:
            self._average = WeightAverage(job.ema, [weights], average)
            self.average = self._average.part(slice(low, high))

    def _step(self, gradients: Gradients) -> None:
        (gradient,) = gradients
        assert gradient is not None, "a flat gradient is never missing"
        if self.present is None and self._even:
            self._steps += 1
            weights, *slots = self._whole
            self._apply(weights, [gradient], slots, self._counters[:1])
            return
        self._even = False
        chosen = [number for number in range(len(self._steps)) if self.present is None or self.present[number]]
        self._steps[chosen] += 1
        mine = [number for number in chosen if number in self._cuts]
        if not mine:
            return
        weights, *slots = map(list, zip(*(self._pieces[number] for number in mine), strict=True))
        given = [gradient[self._cuts[number]] for number in mine]
        self._apply(weights, given, slots, [self._counters[number] for number in mine])

    @property
    def whole_average(self) -> WeightAverage | None:
        return None if self.average is None else self._average

    def state(self) -> dict[str, torch.Tensor]:
        whole = self.whole_average
        return super().state() | ({} if whole is None else whole.state())

    def load(self, state: dict[str, torch.Tensor]) -> None:
        super().load(state)
        self._even = bool((self._steps == self._steps[0]).all())


def torch_optimizer(job: Job) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of `torch.optim` that a job's optimizer is, and its settings."""
    decay = job.decay_of_weights
    if job.optimizer in ("adam", "adamw"):
        kind = torch.optim.AdamW if job.optimizer == "adamw" else torch.optim.Adam
        return kind, {"lr": job.rate, "betas": ADAM_BETAS, "eps": ADAM_EPSILON, "weight_decay": decay}
    momentum = MOMENTUM if job.optimizer == "momentum" else 0.0
    return torch.optim.SGD, {"lr": job.rate, "momentum": momentum, "weight_decay": decay, "nesterov": job.nesterov}


class StockOptimizer(Optimizer):
    """`torch.optim.SGD`, `Adam` or `AdamW` with their defaults and the job's hyper-parameters."""

    def __init__(self, job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> None:
        self.rate, self._parameters = job.rate, parameters
        kind, settings = torch_optimizer(job)
        self._optimizer: Any = kind(parameters, **settings)
        adaptive = job.optimizer in ("adam", "adamw")
        # `torch.optim` makes its state in the first step; a resumed run loads into it before that.
        slots = STOCK_SLOTS[job.optimizer]
        begun = {"step": torch.zeros(())} if adaptive else {}
        state = {
            index: {name: value.clone() for name, value in begun.items()}
            | {name: torch.zeros_like(parameter, requires_grad=False) for name in slots}
            for index, parameter in enumerate(parameters)
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state if slots else {}, "param_groups": groups})
        self._optimizer = self._optimizer if wrap is None else wrap(self._optimizer)
        self.average = average_of(job, parameters)

    def step(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate
        self._optimizer.step()
        if self.average is not None:
            self.average.update()

    def state(self) -> dict[str, torch.Tensor]:
        found = {
            f"{name}.{index}": value
            for index, parameter in enumerate(self._parameters)
            for name, value in self._optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor)
        }
        return found | (self.average.state() if self.average else {})


def make_optimizer(job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> Optimizer:
    """The optimizer of a job: the user's, or that of its implementation. One that another library wraps is the user's
    or that of `torch.optim`."""
    if job.has_own_optimizer:
        from velodrome.engines.torch.own_optimizer import OwnOptimizer

        return OwnOptimizer(job, parameters, wrap)
    if job.implementation == "stock" or wrap is not None:
        return StockOptimizer(job, parameters, wrap)
    return FusedOptimizer(job, list(parameters))


@torch.no_grad()
def squared_norm(gradients: Gradients) -> float:
    """The sum of the squares of all numbers, in double precision: a float32 sum of millions loses four digits."""
    norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in gradients if each is not None]
    return float(torch.stack(norms).square().sum()) if norms else 0.0


@torch.no_grad()
def clip(gradients: Gradients, norm: float, maximum: float) -> None:
    """Scale gradients of this norm down to the maximum, in place, if they exceed it."""
    if norm > maximum:
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(maximum / norm)


def report_implementation(context: Context, optimizer: Optimizer, path: str | None) -> dict[str, Any]:
    """The parts that train here: those of the strategy's description, with what this PyTorch lacks replaced."""
    job = context.job
    report = context.strategy.implementation.report(job.implementation, path)
    if job.has_own_optimizer:
        ours = (FUSED_OPTIMIZER, STOCK_OPTIMIZER)
        for parts in ("own", "framework"):
            report[parts] = [part for part in report[parts] if part not in ours]
        report["framework"].append(f"your optimizer {job.optimizer}")
    if optimizer.missing:
        report["own"] = [PLAIN_OPTIMIZER if part == FUSED_OPTIMIZER else part for part in report["own"]]
        if context.is_chief:
            names = " and ".join(f"torch.{name}" for name in optimizer.missing)
            message = f"this PyTorch lacks {names}: optimizer steps use public functions and take longer"
            context.events.emit("warning", message=message)
    return report
