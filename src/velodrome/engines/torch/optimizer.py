"""sgd, momentum, adam and adamw in Velodrome's form, which calls PyTorch's fused kernels itself.

All optimizers are given the gradients of a step as a list. A parameter without a gradient is skipped, as `torch.optim`
does: neither it nor its momentum changes, and Adam does not count the step for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from velodrome.catalog.engines.torch import FUSED_OPTIMIZER, PLAIN_OPTIMIZER, STOCK_OPTIMIZER
from velodrome.engines.torch.kernels import Kernels, Tensors, choose_kernels
from velodrome.job.job import Job
from velodrome.worker.context import Context

#: The gradient of each parameter; None where a parameter got none.
Gradients = Sequence[torch.Tensor | None]

#: What an optimizer keeps of every parameter.
SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum",), "adam": ("mean", "square"), "adamw": ("mean", "square")
}


class WeightAverage:
    """The exponential moving average of the weights (`--ema`), which is evaluated and saved in their place, computed as
    `torch.optim.swa_utils.AveragedModel` does: the first update copies."""

    def __init__(self, decay: float, tensors: Sequence[torch.Tensor], averages: Sequence[torch.Tensor] = ()) -> None:
        """`averages` are tensors like the others, where they must lie in memory given by the caller."""
        self._decay = decay
        self._tensors = [tensor.detach() for tensor in tensors]
        self.averages = list(averages) or [torch.zeros_like(tensor) for tensor in self._tensors]
        for average, tensor in zip(self.averages, self._tensors, strict=True):
            average.copy_(tensor)
        #: Updates so far, as a tensor because it belongs into checkpoints.
        self.updates = torch.zeros((), dtype=torch.int64)
        self._begun = False

    def part(self, cut: slice) -> WeightAverage:
        """The average of a part of flat tensors, in the same memory."""
        found = WeightAverage.__new__(WeightAverage)
        found._decay, found.updates, found._begun = self._decay, self.updates, self._begun
        found._tensors, found.averages = ([each[cut] for each in held] for held in (self._tensors, self.averages))
        return found

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the tensors as they are now."""
        weight = 1 - self._decay if self._begun else 1.0
        self._begun = True
        self.updates += 1
        for average, tensor in zip(self.averages, self._tensors, strict=True):
            average.lerp_(tensor, weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange tensors and averages."""
        for average, tensor in zip(self.averages, self._tensors, strict=True):
            kept = tensor.clone()
            tensor.copy_(average)
            average.copy_(kept)

    def state(self) -> dict[str, torch.Tensor]:
        named = {f"ema.{index}": average for index, average in enumerate(self.averages)}
        return {"ema.updates": self.updates, **named}

    def restored(self) -> None:
        """Called after a saved state was copied into that of this average."""
        self._begun = bool(self.updates > 0)


def average_of(job: Job, tensors: Sequence[torch.Tensor]) -> WeightAverage | None:
    """The average that a job asks for; None if it asks for none."""
    return None if job.ema is None else WeightAverage(job.ema, tensors)


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
