"""`allreduce`: every process computes the gradient of its part of a batch, and the parts are summed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients, Optimizer
from velodrome.engines.torch.reducers import AllReduceReducer, GradientReducer, SharedMemoryReducer

T = TypeVar("T")


class AllReduceLearner(TorchLearner):
    """Shares parameters with the other processes where all are on one host, else all-reduces gradients over MPI."""

    collective_seconds: float = 0.0

    def _make_optimizer(self) -> Optimizer:
        self._reducer = self._choose_reducer()
        self.path = self._reducer.path
        return self._reducer.optimizer

    def _choose_reducer(self) -> GradientReducer:
        transport, job, may_skip = self._transport, self._context.job, not self._network.from_zoo
        if job.implementation == "stock" or job.has_own_optimizer:  # whose steps cannot be divided into slices
            return AllReduceReducer(transport, self._trained, job, may_skip=may_skip)
        shares = transport.size > 1 and self._device.type == "cpu" and self._network.leaves_parameters_unchanged()
        agreed = np.array([shares], np.int64)
        transport.all_reduce(agreed)
        if agreed[0] == transport.size:
            memory = SharedMemoryReducer.allocate(transport, self._trained, job, may_skip=may_skip)
            if memory is not None:
                return SharedMemoryReducer(transport, self._trained, job, memory)
            if transport.not_shared:
                message = f"workers that share parameters need {transport.not_shared}: MPI sums the gradients instead"
                self._context.events.emit("warning", message=message)
        return AllReduceReducer(transport, self._trained, job, may_skip=may_skip)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        # Of several batches that are added up, the last has an example unless none has.
        self._reducer.write(None if loss is None else self._local_gradients(loss))
        return self._blocking(self._reducer.reduce)

    def _norm(self, gradients: Gradients) -> float:
        return self._blocking(lambda: self._reducer.norm(gradients))

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        super().step(loss, batch)
        if not self._added:
            self._blocking(self._reducer.finish)

    def _between_steps(self) -> None:
        self._blocking(self._reducer.finish)

    def _blocking(self, call: Callable[[], T]) -> T:
        """Make a call that blocks until all processes make it, and count the time it takes."""
        status = self._context.status
        status.waiting = True
        began = time.perf_counter()
        result = call()
        self.collective_seconds += time.perf_counter() - began
        status.waiting = False
        return result
