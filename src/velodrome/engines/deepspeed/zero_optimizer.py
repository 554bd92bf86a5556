"""The optimizer of a DeepSpeed engine, and its state: divided over the processes, put together by parameter."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.utils import (
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch.nn.functional import pad

from velodrome.engines.torch.optimizer import Gradients, Optimizer
from velodrome.engines.torch.torch_optimizers import STOCK_SLOTS
from velodrome.job.job import Job


class ZeroOptimizer(Optimizer):
    """Steps the engine, which has the gradients. Each process has flat parts of weights and state, in float32."""

    def __init__(self, job: Job, engine: Any, parameters: list[torch.nn.Parameter]) -> None:
        self.rate, self._engine, self._parameters = job.rate, engine, parameters
        self._slots = STOCK_SLOTS[job.optimizer]
        zero, self._divides_weights = engine.optimizer, engine.zero_optimization_partition_weights()
        self._flat: list[torch.Tensor] = (
            zero.fp32_partitioned_groups_flat if self._divides_weights else zero.single_partition_of_fp32_groups
        )
        self._collected: dict[str, torch.Tensor] = {}
        # `torch.optim` makes its state in the first step; a resumed run loads into it before that.
        counters = ("step",) if job.optimizer in ("adam", "adamw") else ()
        for flat in self._flat if self._slots else ():
            zero.optimizer.state[flat] = {name: torch.zeros(()) for name in counters} | {
                name: torch.zeros_like(flat, requires_grad=False) for name in self._slots
            }
        if not self._divides_weights:
            zero._lazy_init_hp_params_optimizer_state()  # done by the first step otherwise

    def step(self, gradients: Gradients) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.rate
        self._engine.step()

    def _counters(self) -> list[torch.Tensor]:
        """How many steps each flat part has made, where the optimizer counts them."""
        held = [self._engine.optimizer.optimizer.state[flat] for flat in self._flat]
        return [each["step"] for each in held if "step" in each]

    def collect(self, *, keep: bool) -> None:
        """Put the state together; called in every process, and kept where it is asked for."""
        for slot in self._slots:
            for index, parameter in enumerate(self._parameters):
                whole = safe_get_full_optimizer_state(parameter, slot)
                if keep:
                    self._collected[f"{slot}.{index}"] = whole.cpu()

    def state(self) -> dict[str, torch.Tensor]:
        counters = self._counters()[:1]
        return self._collected | ({"steps": counters[0]} if counters else {})

    @torch.no_grad()
    def load(self, state: dict[str, torch.Tensor]) -> None:
        for counter in self._counters():
            counter.copy_(state["steps"])
        for slot in self._slots:
            for index, parameter in enumerate(self._parameters):
                if self._divides_weights:
                    safe_set_local_optimizer_state(parameter, self._part(parameter, state[f"{slot}.{index}"]), slot)
                else:
                    safe_set_full_optimizer_state(parameter, state[f"{slot}.{index}"], slot)

    @torch.no_grad()
    def step_from(self, weights: list[torch.Tensor]) -> None:
        """Step from these weights on, one for each parameter; the model must have them already."""
        for parameter, value in zip(self._parameters, weights, strict=True):
            if self._divides_weights:
                safe_set_local_fp32_param(parameter, self._part(parameter, value))
            else:
                safe_set_full_fp32_param(parameter, value)

    def _part(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """What this process has of a value of a parameter. DeepSpeed's own division (`safe_set_full_…`) fails where
        parts are not equally large."""
        size, rank = parameter.partition_numel(), self._engine.global_rank
        filled = pad(value.flatten(), (0, size * self._engine.world_size - value.numel()))
        return filled[size * rank : size * (rank + 1)]
