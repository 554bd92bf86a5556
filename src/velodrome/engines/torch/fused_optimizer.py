"""sgd, momentum, adam and adamw in Velodrome's form, which calls PyTorch's fused kernels itself.

These kernels are private functions of PyTorch, and no other file of the engine calls one: here is what each gains, and
the public functions that replace it. One that is missing or takes other arguments than today is replaced, and training
continues, slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from velodrome.catalog.engines.torch import FUSED_OPTIMIZER, PLAIN_OPTIMIZER, STOCK_OPTIMIZER
from velodrome.engines.torch.optimizer import (
    ADAM_EPSILON,
    Gradients,
    Optimizer,
    OwnOptimizer,
    StockOptimizer,
    WeightAverage,
    Wrap,
    average_of,
)
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.training.context import Context

#: What an optimizer keeps of every parameter.
SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum",), "adam": ("mean", "square"), "adamw": ("mean", "square")
}

Tensors = list[torch.Tensor]
#: Tensors, gradients, running means, running means of squares, each tensor's number of steps with this one, learning
#: rate, weight decay.
AdamStep = Callable[[Tensors, Tensors, Tensors, Tensors, Tensors, float, float], None]
#: Tensors, gradients, momentum, learning rate, weight decay, whether in Nesterov's form.
MomentumStep = Callable[[Tensors, Tensors, Tensors, float, float, bool], None]

#: The private functions, by their names in `torch`.
PRIVATE = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_")


# Microseconds of CPU for one step of dense-300-100 (266,610 parameters, one thread, torch 2.13.0):
#   adam: this 154, `torch.optim.Adam(fused=True)` 311, `plain_adam` 600, `torch.optim.Adam()` 1,390
#   momentum: this 67, `torch.optim.SGD(fused=True)` 136, `plain_momentum` 134, `torch.optim.SGD()` 233
# (a whole step takes about 1,500). `torch.optim` also imports the compiler with its first optimizer, which takes as
# long as importing PyTorch. The `_foreach` functions gained 4 µs a step and are not used.


def fused_adam(
    tensors: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors, rate: float,
    decay: float = 0.0, *, decoupled: bool = False,
) -> None:
    """One step of Adam in a single pass over all tensors; weight decay is added to the gradient or, `decoupled` as in
    AdamW, does not pass through the running means."""
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        tensors, gradients, means, squares, [], steps,
        lr=rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], weight_decay=decay, eps=ADAM_EPSILON,
        amsgrad=False, maximize=False,
    )


def fused_momentum(
    tensors: Tensors, gradients: Tensors, momentum: Tensors, rate: float, decay: float = 0.0, nesterov: bool = False
) -> None:
    """One step of SGD with momentum in a single pass over all tensors."""
    torch._fused_sgd_(
        tensors, gradients, momentum, weight_decay=decay, momentum=MOMENTUM, lr=rate,
        dampening=0.0, nesterov=nesterov, maximize=False, is_first_step=False,
    )


def plain_adam(
    tensors: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors, rate: float,
    decay: float = 0.0, *, decoupled: bool = False,
) -> None:
    """The same by public functions."""
    for tensor, gradient, mean, square, step in zip(tensors, gradients, means, squares, steps, strict=True):
        if decoupled:
            tensor.mul_(1 - rate * decay)
        elif decay:
            gradient = gradient.add(tensor, alpha=decay)
        mean_correction, square_correction = (1 - beta ** float(step) for beta in ADAM_BETAS)
        mean.lerp_(gradient, 1 - ADAM_BETAS[0])
        square.mul_(ADAM_BETAS[1]).addcmul_(gradient, gradient, value=1 - ADAM_BETAS[1])
        divisor = square.sqrt().div_(math.sqrt(square_correction)).add_(ADAM_EPSILON)
        tensor.addcdiv_(mean, divisor, value=-rate / mean_correction)


def plain_momentum(
    tensors: Tensors, gradients: Tensors, momentum: Tensors, rate: float, decay: float = 0.0, nesterov: bool = False
) -> None:
    """One step of SGD with momentum by public functions."""
    for tensor, gradient, moved in zip(tensors, gradients, momentum, strict=True):
        gradient = gradient.add(tensor, alpha=decay) if decay else gradient
        moved.mul_(MOMENTUM).add_(gradient)
        tensor.add_(gradient.add(moved, alpha=MOMENTUM) if nesterov else moved, alpha=-rate)


@dataclass(frozen=True)
class Kernels:
    """The optimizer steps that this PyTorch offers."""

    adam: AdamStep
    momentum: MomentumStep
    #: The private functions that had to be replaced.
    missing: tuple[str, ...] = ()


def choose_kernels(*, decoupled: bool = False) -> Kernels:
    """The fused steps, each replaced by its public form where a trial step fails or differs from it. With `decoupled`,
    that of Adam is AdamW's."""
    adam, plain = (partial(step, decoupled=decoupled) for step in (fused_adam, plain_adam))
    momentum: MomentumStep = fused_momentum
    missing = []
    if not _agree(
        lambda each: adam([each[0]], [each[1]], [each[2]], [each[3]], [torch.ones(())], 0.1, 0.2),
        lambda each: plain([each[0]], [each[1]], [each[2]], [each[3]], [torch.ones(())], 0.1, 0.2),
    ):
        adam = plain
        missing.append("_fused_adamw_" if decoupled else "_fused_adam_")
    if not _agree(
        lambda each: fused_momentum([each[0]], [each[1]], [each[2]], 0.1, 0.2, True),
        lambda each: plain_momentum([each[0]], [each[1]], [each[2]], 0.1, 0.2, True),
    ):
        momentum = plain_momentum
        missing.append("_fused_sgd_")
    return Kernels(adam, momentum, tuple(missing))


@torch.no_grad()
def _agree(private: Callable[[torch.Tensor], None], public: Callable[[torch.Tensor], None]) -> bool:
    """Whether both change a few numbers alike: a row each for tensor, gradient and slots."""
    expected, changed = (torch.tensor([[1.0, 2.0], [0.5, -0.5], [0.1, 0.2], [0.3, 0.4]]) for _ in range(2))
    public(expected)
    try:
        private(changed)
    except (AttributeError, TypeError, RuntimeError):  # it is gone, or takes other arguments
        return False
    return torch.allclose(changed, expected, rtol=1e-5)


class FusedOptimizer(Optimizer):
    """Calls the fused kernels directly, one call a step for all tensors that have a gradient."""

    def __init__(
        self, job: Job, tensors: Tensors, *, slots: Tensors | None = None, parameters: int | None = None,
        averaged: bool = True,
    ) -> None:
        """`slots` are the state of a single tensor, zero and like it, where it must lie in memory given by the caller.
        `parameters` is how many there are, if it is not one per tensor. Without `averaged`, the caller makes the
        average."""
        self._kind, self.rate = job.optimizer, job.rate
        self._decay, self._nesterov = job.decay_of_weights, job.nesterov
        self._kernels = choose_kernels(decoupled=job.optimizer == "adamw")
        self.missing = self._kernels.missing
        self._tensors = [tensor.detach() for tensor in tensors]
        names = SLOTS[job.optimizer]
        made = [[slot] for slot in slots] if slots else [[torch.zeros_like(each) for each in tensors] for _ in names]
        self._slots = dict(zip(names, made, strict=True))
        #: How many steps each parameter has made. A single number, as in older checkpoints, sets all of them.
        self._steps = torch.zeros(parameters or len(tensors), dtype=torch.float32, device=tensors[0].device)
        self._counters = list(self._steps.unbind())
        self.average = average_of(job, tensors) if averaged else None

    @torch.no_grad()
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

    def _own_state(self) -> dict[str, torch.Tensor]:
        slots = {f"{name}.{index}": slot for name, all_ in self._slots.items() for index, slot in enumerate(all_)}
        return {"steps": self._steps, **slots}


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
            self._average = WeightAverage.of(job.ema, [weights], average)
            self.average = self._average.part(slice(low, high))

    @torch.no_grad()
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

    def load(self, state: dict[str, torch.Tensor]) -> None:
        super().load(state)
        self._even = bool((self._steps == self._steps[0]).all())


def make_optimizer(job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> Optimizer:
    """The optimizer of a job: the user's, or that of its implementation. One that another library wraps is the user's
    or that of `torch.optim`."""
    if job.has_own_optimizer:
        return OwnOptimizer(job, parameters, wrap)
    if job.implementation == "stock" or wrap is not None:
        return StockOptimizer(job, parameters, wrap)
    return FusedOptimizer(job, list(parameters))


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
