"""`allreduce`: parameters and gradients of the network in one flat buffer each, summed by a transport in place."""

from __future__ import annotations

import time

import torch

from velodrome.engines.torch.learner import TorchLearner


def flatten(parameters: list[torch.nn.Parameter]) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Move parameters into one flat tensor: it, a gradient as large, and the views of that gradient by parameter.

    A parameter keeps its memory layout: channels-last weights stay so inside the flat tensor.
    """
    size = sum(parameter.numel() for parameter in parameters)
    flat, gradient = (torch.zeros(size, dtype=parameters[0].dtype, device=parameters[0].device) for _ in range(2))
    views, offset = [], 0
    for parameter in parameters:
        dense = torch.empty_like(parameter)
        place = flat.as_strided(dense.shape, dense.stride(), offset)
        place.copy_(parameter.detach())
        parameter.data = place
        views.append(gradient.as_strided(dense.shape, dense.stride(), offset))
        offset += parameter.numel()
    return flat, gradient, views


class AllReduceLearner(TorchLearner):
    """Each process computes its part of the gradient; one sum over MPI makes it whole everywhere."""

    collective_seconds: float

    def _optimized(self) -> list[torch.Tensor]:
        self._flat, self._gradient, self._views = flatten(self._trained)
        self.collective_seconds = 0.0
        self._on_host = torch.empty_like(self._gradient, device="cpu") if self._device.type != "cpu" else self._gradient
        self._buffer = self._on_host.numpy()
        return [self._flat]

    def _gradients(self, loss: torch.Tensor | None) -> list[torch.Tensor]:
        if loss is None:
            self._gradient.zero_()
        else:
            torch._foreach_copy_(self._views, self._local_gradients(loss))
        if self._on_host is not self._gradient:
            self._on_host.copy_(self._gradient)
        status = self._context.status
        status.waiting = True
        began = time.perf_counter()
        self._transport.all_reduce(self._buffer)
        self.collective_seconds += time.perf_counter() - began
        status.waiting = False
        if self._on_host is not self._gradient:
            self._gradient.copy_(self._on_host)
        return [self._gradient]
