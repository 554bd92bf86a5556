"""`zero1`: DistributedDataParallel, whose optimizer's state and step PyTorch's ZeroRedundancyOptimizer divides."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from velodrome.engines.torch.average import average_of
from velodrome.engines.torch.ddp import DdpLearner
from velodrome.engines.torch.optimizer import Gradients, Optimizer, torch_optimizer
from velodrome.engines.torch.process_group import ProcessGroup, translate_peer_errors
from velodrome.job.job import Job
from velodrome.worker.context import Context


class ZeroOptimizer(Optimizer):
    """Each process steps the parameters that are its own, keeps state of no others, and sends them to all."""

    def __init__(self, context: Context, parameters: list[torch.nn.Parameter], transport: ProcessGroup) -> None:
        job: Job = context.job
        self.rate, self._context, self._parameters = job.rate, context, parameters
        kind, settings = torch_optimizer(job)
        self._optimizer = ZeroRedundancyOptimizer(
            parameters, optimizer_class=kind, process_group=transport.group, **settings
        )
        self.average = average_of(job, parameters)

    def step(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate
        with self._context.waiting(), translate_peer_errors():
            self._optimizer.step()
        if self.average is not None:
            self.average.update()

    def collect(self) -> None:
        """Bring the state of all parameters to rank 0; called in every process, before `state` there."""
        with translate_peer_errors():
            self._optimizer.consolidate_state_dict(to=0)

    def state(self) -> dict[str, torch.Tensor]:
        held = self._optimizer.state_dict()["state"]
        found = {
            f"{name}.{index}": value
            for index, kept in held.items() for name, value in kept.items() if isinstance(value, torch.Tensor)
        }
        return found | (self.average.state() if self.average else {})

    def load(self, state: dict[str, torch.Tensor]) -> None:
        held: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in state.items():
            kept, _, index = name.rpartition(".")
            if kept and kept != "ema" and index.isdigit():
                held.setdefault(int(index), {})[kept] = value
        groups: list[dict[str, Any]] = [
            {**group, "params": list(range(len(self._parameters)))} for group in self._optimizer.param_groups
        ]
        self._optimizer.load_state_dict({"state": held, "param_groups": groups})
        if self.average is not None:
            for name, place in self.average.state().items():
                if name in state:
                    place.copy_(state[name])
            self.average.restored()


class Zero1Learner(DdpLearner):
    """Gradients are averaged as under `ddp`; the optimizer is divided."""

    def _make_optimizer(self) -> Optimizer:
        assert isinstance(self._transport, ProcessGroup)
        self._divided = ZeroOptimizer(self._context, self._trained, self._transport)
        return self._divided

    def collect_state(self) -> None:
        self._divided.collect()
