"""An optimizer of the user's, `--optimizer module:function`: called with the parameters, used as it is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from velodrome.engines.torch.average import average_of
from velodrome.engines.torch.optimizer import Gradients, Optimizer, Wrap
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.models.own import builder_of


class OwnOptimizer(Optimizer):
    """Steps by what the user's function returned. A schedule multiplies the rates that it came with."""

    def __init__(self, job: Job, parameters: list[torch.nn.Parameter], wrap: Wrap | None = None) -> None:
        self.rate, self._parameters = job.rate, parameters
        made = make(job.optimizer, parameters)
        self._optimizer: Any = made if wrap is None else wrap(made)
        self._sets_rate = job.sets_rate
        self._rates = [group["lr"] for group in self._optimizer.param_groups] if self._sets_rate else []
        self.average = average_of(job, parameters)

    def step(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._sets_rate:
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self.rate
        self._optimizer.step()
        if self.average is not None:
            self.average.update()

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


def make(name: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
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
