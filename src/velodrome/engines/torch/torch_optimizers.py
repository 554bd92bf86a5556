"""Optimizers of `torch.optim`: stock ones, the user's own, and those that other libraries wrap or divide."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from velodrome.engines.torch.kernels import ADAM_EPSILON
from velodrome.engines.torch.optimizer import FusedOptimizer, Gradients, Optimizer, average_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM
from velodrome.models.own import builder_of

#: What another library puts around an optimizer of `torch.optim`, which offers the same.
Wrap = Callable[[torch.optim.Optimizer], Any]
#: The same by the names that `torch.optim` uses in its checkpoints.
STOCK_SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")
}


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

    def step(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._set_rate()
        self._optimizer.step()
        if self.average is not None:
            self.average.update()


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

    def state(self) -> dict[str, torch.Tensor]:
        found = {
            f"{name}.{index}": value
            for index, parameter in enumerate(self._parameters)
            for name, value in self._optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor)
        }
        return found | (self.average.state() if self.average else {})


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

    def state(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, held, key in self._entries():
            value = held[key]
            if isinstance(value, torch.Tensor):
                found[name] = value
            elif isinstance(value, bool | int | float):
                kind = torch.float64 if isinstance(value, float) else torch.int64
                found[f"{name}.{type(value).__name__}"] = torch.tensor(value, dtype=kind)
        return found | (self.average.state() if self.average else {})

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
        super().load({name: value for name, value in state.items() if name.startswith("ema.")})


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
            f"--optimizer {name!r}: {type(made).__name__} computes the loss several times in a step, and a step here "
            "has one gradient; choose another"
        )
    trained = {id(parameter) for parameter in parameters}
    given = [parameter for group in made.param_groups for parameter in group["params"]]
    if not any(id(parameter) in trained for parameter in given):
        raise BadRequest(f"--optimizer {name!r} steps none of the parameters that the function is called with")
    return made


def make_optimizer(job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> Optimizer:
    """The optimizer of a job: the user's, or that of its implementation. One that another library wraps is the user's
    or that of `torch.optim`."""
    if job.has_own_optimizer:
        return OwnOptimizer(job, parameters, wrap)
    if job.implementation == "stock" or wrap is not None:
        return StockOptimizer(job, parameters, wrap)
    return FusedOptimizer(job, list(parameters))
