"""`allreduce`: parameters and gradients of the network in one flat buffer each, summed by a transport in place."""

from __future__ import annotations

import time

import torch

from velodrome.engines.torch.learner import TorchLearner
from velodrome.transport.base import SentFlat


def flatten(parameters: list[torch.nn.Parameter], gradient: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Move parameters into one flat tensor: it, and the views by parameter of a flat gradient.

    A parameter keeps its memory layout: channels-last weights stay so inside the flat tensor.
    """
    flat = torch.zeros_like(gradient)
    views, offset = [], 0
    for parameter in parameters:
        dense = torch.empty_like(parameter)
        place = flat.as_strided(dense.shape, dense.stride(), offset)
        place.copy_(parameter.detach())
        parameter.data = place
        views.append(gradient.as_strided(dense.shape, dense.stride(), offset))
        offset += parameter.numel()
    return flat, views


class AllReduceLearner(TorchLearner):
    """Each process computes its part of the gradient; one sum over MPI makes it whole everywhere."""

    collective_seconds: float

    def _optimized(self) -> list[torch.Tensor]:
        size, dtype = sum(parameter.numel() for parameter in self._trained), self._trained[0].dtype
        # Clipping changes the sum in place, which only its owner may: that one is not shared.
        sent = self._context.job.clip_norm is not None or self._device.type != "cpu"
        number_type = self._context.job.dtype
        self._summed = SentFlat(self._transport, size, number_type) if sent else self._transport.flat(size, number_type)
        self._written, self._total = torch.from_numpy(self._summed.mine), torch.from_numpy(self._summed.total)
        self._gradient = self._written.to(self._device, dtype)
        self._flat, self._views = flatten(self._trained, self._gradient)
        self.collective_seconds = 0.0
        return [self._flat]

    def _gradients(self, loss: torch.Tensor | None) -> list[torch.Tensor]:
        if loss is None:
            self._gradient.zero_()
        else:
            torch._foreach_copy_(self._views, self._local_gradients(loss))
        if self._gradient is not self._written:
            self._written.copy_(self._gradient)
        status = self._context.status
        status.waiting = True
        began = time.perf_counter()
        self._summed.reduce()
        self.collective_seconds += time.perf_counter() - began
        status.waiting = False
        if self._gradient is self._written:
            return [self._total]
        self._gradient.copy_(self._total)
        return [self._gradient]
