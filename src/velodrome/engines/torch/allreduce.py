"""`allreduce`: every process computes its part of the gradient, and one sum over MPI makes it whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Optimizer
from velodrome.engines.torch.reducers import Sent, Shared, Sums

T = TypeVar("T")


class AllReduceLearner(TorchLearner):
    """Shares parameters with the other processes where they are on one host, else sends gradients to them."""

    collective_seconds: float = 0.0

    def _make_optimizer(self) -> Optimizer:
        self._sums = self._choose_sums()
        return self._sums.optimizer

    def _choose_sums(self) -> Sums:
        transport, job = self._transport, self._context.job
        shares = transport.size > 1 and self._device.type == "cpu" and self._network.leaves_parameters_alone()
        agreed = np.array([shares], np.int64)
        transport.all_reduce(agreed)
        if agreed[0] == transport.size:
            memory = Shared.memory(transport, self._trained, job)
            if memory is not None:
                return Shared(transport, self._trained, job, memory)
        return Sent(transport, self._trained, job)

    def _gradients(self, loss: torch.Tensor | None) -> list[torch.Tensor]:
        self._sums.write(None if loss is None else self._local_gradients(loss))
        return self._together(self._sums.reduce)

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        return self._together(lambda: self._sums.norm(gradients))

    def step(self, loss: torch.Tensor | None, batch: int) -> None:
        super().step(loss, batch)
        self._together(self._sums.finish)

    def _together(self, call: Callable[[], T]) -> T:
        """Do what blocks until all processes do it."""
        status = self._context.status
        status.waiting = True
        began = time.perf_counter()
        result = call()
        self.collective_seconds += time.perf_counter() - began
        status.waiting = False
        return result
