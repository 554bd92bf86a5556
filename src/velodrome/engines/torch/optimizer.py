"""Optimizers in one interface: those of `torch.optim`, stock or the user's own, and the moving average of weights.

All optimizers are given the gradients of a step as a list. A parameter without a gradient is skipped, as `torch.optim`
does: neither it nor its momentum changes, and Adam does not count the step for it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.models.own import builder_of

#: The default of `torch.optim.Adam`.
ADAM_EPSILON = 1e-8
#: The gradient of each parameter; None where a parameter got none.
Gradients = Sequence[torch.Tensor | None]
#: What another library puts around an optimizer of `torch.optim`, which offers the same.
Wrap = Callable[[torch.optim.Optimizer], Any]
#: What an optimizer keeps of every parameter, by the names that `torch.optim` uses in its checkpoints.
STOCK_SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")
}


@torch.no_grad()
def copy_by_name(targets: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Copy each value into the target of its name, where there is one."""
    for name, target in targets.items():
        if name in values:
            target.copy_(values[name])


class WeightAverage:
    """The exponential moving average of the weights (`--ema`), which is evaluated and saved in their place, computed as
    `torch.optim.swa_utils.AveragedModel` does: the first update copies."""

    def __init__(
        self, decay: float, tensors: Sequence[torch.Tensor], averages: Sequence[torch.Tensor], updates: torch.Tensor
    ) -> None:
        self._decay, self._tensors, self.averages = decay, tensors, averages
        #: Updates so far, as a tensor because it belongs into checkpoints.
        self._updates = updates

    @classmethod
    def of(
        cls, decay: float, tensors: Sequence[torch.Tensor], averages: Sequence[torch.Tensor] = ()
    ) -> WeightAverage:
        """That of these tensors before the first update; `averages` are tensors like them, where they must lie in
        memory given by the caller."""
        tensors = [tensor.detach() for tensor in tensors]
        averages = averages or [torch.empty_like(tensor) for tensor in tensors]
        for average, tensor in zip(averages, tensors, strict=True):
            average.copy_(tensor)
        return cls(decay, tensors, averages, torch.zeros((), dtype=torch.int64))

    def part(self, cut: slice) -> WeightAverage:
        """The average of a part of flat tensors, in the same memory."""
        tensors, averages = ([each[cut] for each in held] for held in (self._tensors, self.averages))
        return WeightAverage(self._decay, tensors, averages, self._updates)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the tensors as they are now."""
        weight = 1 - self._decay if self._updates.item() else 1.0
        self._updates += 1
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
        return {"ema.updates": self._updates, **named}


def average_of(job: Job, tensors: Sequence[torch.Tensor]) -> WeightAverage | None:
    """The average that a job asks for; None if it asks for none."""
    return None if job.ema is None else WeightAverage.of(job.ema, tensors)


class Optimizer(ABC):
    """Changes tensors in place by their gradients, which must lie in memory as the tensors do."""

    #: The learning rate of the next step.
    rate: float
    #: Private functions of PyTorch that had to be replaced by public ones.
    missing: tuple[str, ...] = ()
    #: The moving average of the tensors that this process steps; None if the job asks for none.
    average: WeightAverage | None = None

    def step(self, gradients: Gradients) -> None:
        """Make one step, and update the average."""
        self._step(gradients)
        if self.average is not None:
            self.average.update()

    @abstractmethod
    def _step(self, gradients: Gradients) -> None:
        """Make one step."""

    @property
    def whole_average(self) -> WeightAverage | None:
        """The moving average of all parameters, whichever process steps them."""
        return self.average

    def average_state(self) -> dict[str, torch.Tensor]:
        """The state of the average, if there is one."""
        return {} if self.whole_average is None else self.whole_average.state()

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, by name; copying into these tensors restores it."""
        return self._own_state() | self.average_state()

    @abstractmethod
    def _own_state(self) -> dict[str, torch.Tensor]:
        """The same without the average."""

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from what `state` returned, in this process or another."""
        copy_by_name(self.state(), state)


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


# -- torch.optim


def torch_optimizer(job: Job) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of `torch.optim` that a job's optimizer is, and its settings."""
    decay = job.decay_of_weights
    if job.optimizer in ("adam", "adamw"):
        kind = torch.optim.AdamW if job.optimizer == "adamw" else torch.optim.Adam
        return kind, {"lr": job.rate, "betas": ADAM_BETAS, "eps": ADAM_EPSILON, "weight_decay": decay}
    momentum = MOMENTUM if job.optimizer == "momentum" else 0.0
    return torch.optim.SGD, {"lr": job.rate, "momentum": momentum, "weight_decay": decay, "nesterov": job.nesterov}


class LibraryOptimizer(Optimizer):
    """Steps by an optimizer with the interface of `torch.optim`."""

    def __init__(self, job: Job, parameters: list[torch.nn.Parameter], optimizer: Any) -> None:
        self.rate, self._parameters, self._optimizer = job.rate, parameters, optimizer
        self.average = average_of(job, parameters)

    def _set_rate(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate

    def _step(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._set_rate()
        self._optimizer.step()


class StockOptimizer(LibraryOptimizer):
    """`torch.optim.SGD`, `Adam` or `AdamW` with their defaults and the job's hyper-parameters."""

    def __init__(self, job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> None:
        kind, settings = torch_optimizer(job)
        optimizer = kind(parameters, **settings)
        adaptive = job.optimizer in ("adam", "adamw")
        # `torch.optim` makes its state in the first step; a resumed run loads into it before that.
        slots = STOCK_SLOTS[job.optimizer]
        begun = {"step": torch.zeros(())} if adaptive else {}
        state = {
            index: {name: value.clone() for name, value in begun.items()}
            | {name: torch.zeros_like(parameter, requires_grad=False) for name in slots}
            for index, parameter in enumerate(parameters)
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state if slots else {}, "param_groups": groups})
        super().__init__(job, parameters, optimizer if wrap is None else wrap(optimizer))

    def _own_state(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{index}": value
            for index, parameter in enumerate(self._parameters)
            for name, value in self._optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor)
        }


class OwnOptimizer(LibraryOptimizer):
    """The user's own, `--optimizer module:function`, used as it is. A schedule multiplies the rates that it came
    with."""

    def __init__(self, job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> None:
        made = make_own(job.optimizer, parameters)
        super().__init__(job, parameters, made if wrap is None else wrap(made))
        self._rates = [group["lr"] for group in self._optimizer.param_groups] if job.sets_rate else []

    def _set_rate(self) -> None:
        if self._rates:
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self.rate

    # Its state is whatever it is: tensors and numbers are kept by their places, the numbers apart.

    def _entries(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Name, dictionary and key of everything that it keeps."""
        for index, group in enumerate(self._optimizer.param_groups):
            yield from ((f"group.{index}.{key}", group, key) for key in group if key != "params")
        for index, parameter in enumerate(self._parameters):
            held = self._optimizer.state.get(parameter, {})
            yield from ((f"own.{index}.{key}", held, key) for key in held)

    def _own_state(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = {}
        for name, held, key in self._entries():
            value = held[key]
            if isinstance(value, torch.Tensor):
                state[name] = value
            elif isinstance(value, bool | int | float):
                kind = torch.float64 if isinstance(value, float) else torch.int64
                state[f"{name}.{type(value).__name__}"] = torch.tensor(value, dtype=kind)
        return state

    def load(self, state: dict[str, torch.Tensor]) -> None:
        kinds = {"bool": bool, "int": int, "float": float}
        for name, value in state.items():
            place, index, *rest = name.split(".", 2)
            if place not in ("group", "own") or not rest:
                continue
            key, _, kind = rest[0].rpartition(".")
            number = kind in kinds and value.ndim == 0 and bool(key)
            if place == "own":
                parameter = self._parameters[int(index)]
                held = self._optimizer.state[parameter]
                value = value.to(parameter.device) if value.shape == parameter.shape else value
            else:
                held = self._optimizer.param_groups[int(index)]
            held[key if number else rest[0]] = kinds[kind](value.item()) if number else value.clone()
        copy_by_name(self.average_state(), state)


def make_own(name: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """What the user's function returns for these parameters, or `BadRequest` if it is no optimizer that can step."""
    made = builder_of(name, option="--optimizer")(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise BadRequest(
            f"--optimizer {name!r} returned {type(made).__name__!r}: --engine torch needs a torch.optim.Optimizer"
        )
    needed = [
        parameter.name for parameter in inspect.signature(made.step).parameters.values()
        if parameter.default is parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    ]
    if needed or isinstance(made, torch.optim.LBFGS):
        raise BadRequest(
            f"--optimizer {name!r}: {type(made).__name__} computes the loss several times in a step, but here a step "
            "has one gradient; choose another"
        )
    trained = {id(parameter) for parameter in parameters}
    given = [parameter for group in made.param_groups for parameter in group["params"]]
    if not any(id(parameter) in trained for parameter in given):
        raise BadRequest(f"--optimizer {name!r} updates none of the parameters that the function received")
    return made
