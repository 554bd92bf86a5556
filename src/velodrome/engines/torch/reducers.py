"""Two ways in which the gradients of several processes become one step: sent to each other, or in memory they share.

Both lay parameters and gradients into one flat order, each parameter at the beginning of a cache line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.engines.torch.optimizer import Optimizer, squares
from velodrome.spec.job import Job
from velodrome.transport.base import Transport

#: Parameters, and the slices of processes, begin at multiples of so many numbers.
_LINE = 16


class Order:
    """Where each parameter lies in a flat row. It keeps its memory layout there: channels-last weights stay so."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._like = [torch.empty_like(parameter) for parameter in parameters]
        self.offsets, end = [], 0
        for parameter in parameters:
            self.offsets.append(end)
            end += -(-parameter.numel() // _LINE) * _LINE
        self.count = end

    def views(self, row: torch.Tensor) -> list[torch.Tensor]:
        """A row as one view for each parameter."""
        return [
            row.as_strided(like.shape, like.stride(), offset)
            for like, offset in zip(self._like, self.offsets, strict=True)
        ]

    def move(self, parameters: list[torch.nn.Parameter], row: torch.Tensor) -> None:
        """Let the parameters live in a row from now on."""
        for parameter, place in zip(parameters, self.views(row), strict=True):
            place.copy_(parameter.detach())
            parameter.data = place

    def share(self, rank: int, size: int) -> tuple[int, int]:
        """The part of a row that one of several processes looks after."""
        lines = self.count // _LINE
        return lines * rank // size * _LINE, lines * (rank + 1) // size * _LINE

    def flattened(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like a parameter, its numbers in the order in which the row has them."""
        like = self._like[number]
        if tensor.stride() != like.stride():
            tensor = torch.empty_like(like).copy_(tensor)
        return tensor.as_strided((tensor.numel(),), (1,))


class Cut:
    """What of a row lies between two places, as views by parameter: of all of it, and at the ends of a part."""

    def __init__(self, order: Order, row: torch.Tensor, low: int, high: int) -> None:
        self._order = order
        self._chosen: list[tuple[int, slice | None]] = []
        self._views: list[torch.Tensor] = []
        for number, (view, offset) in enumerate(zip(order.views(row), order.offsets, strict=True)):
            start, stop = max(low - offset, 0), min(high - offset, view.numel())
            if start >= stop:
                continue
            whole = stop - start == view.numel()
            self._chosen.append((number, None if whole else slice(start, stop)))
            self._views.append(view if whole else row[offset + start : offset + stop])

    def set(self, gradients: list[torch.Tensor] | None) -> None:
        """Write the same part of the gradients there; None stands for zeros."""
        if not self._views:
            return
        if gradients is None:
            torch._foreach_zero_(self._views)
        else:
            torch._foreach_copy_(self._views, self._of(gradients))

    def add(self, gradients: list[torch.Tensor] | None) -> None:
        if self._views and gradients is not None:
            torch._foreach_add_(self._views, self._of(gradients))

    def _of(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            gradients[number] if part is None else self._order.flattened(number, gradients[number])[part]
            for number, part in self._chosen
        ]


class Sums(ABC):
    """Adds the gradients of all processes. Their step: `write`, `reduce`, the optimizer, `finish`."""

    optimizer: Optimizer

    @abstractmethod
    def write(self, gradients: list[torch.Tensor] | None) -> None:
        """Take this process's gradients over; None stands for zeros."""

    @abstractmethod
    def reduce(self) -> list[torch.Tensor]:
        """The sums that the optimizer takes. Blocks until everybody has called it."""

    def norm(self, gradients: list[torch.Tensor]) -> float:
        """The length of the whole gradient. Blocks as `reduce` does."""
        return squares(gradients) ** 0.5

    def finish(self) -> None:
        """After the step, before anybody computes again. Blocks as `reduce` does."""
        return


class Sent(Sums):
    """The transport sums one flat gradient, and every process makes the whole step."""

    def __init__(self, transport: Transport, parameters: list[torch.nn.Parameter], job: Job) -> None:
        self._transport = transport
        order, like = Order(parameters), parameters[0]
        weights = torch.zeros(order.count, dtype=like.dtype, device=like.device)
        order.move(parameters, weights)
        self.optimizer = Optimizer(job, [weights])
        self._gradient = torch.zeros_like(weights)
        self._views = order.views(self._gradient)
        self._summed = self._gradient.cpu()  # the same memory, if it is the host's

    def write(self, gradients: list[torch.Tensor] | None) -> None:
        if gradients is None:
            self._gradient.zero_()
        else:
            torch._foreach_copy_(self._views, gradients)

    def reduce(self) -> list[torch.Tensor]:
        if self._summed is not self._gradient:
            self._summed.copy_(self._gradient)
        self._transport.all_reduce(self._summed.numpy())
        if self._summed is not self._gradient:
            self._gradient.copy_(self._summed)
        return [self._gradient]


class Shared(Sums):
    """Parameters and what the optimizer remembers of them lie once in memory that all processes map. Each sums and
    steps a slice of them, so neither the sum nor the new weights need to be sent, and the step is divided too.

    The rows of that memory: the parameters, the optimizer's slots, and one for what each process adds to the slices of
    the others. Nobody changes a parameter between `finish` and `reduce`, when all compute.
    """

    def __init__(
        self, transport: Transport, parameters: list[torch.nn.Parameter], job: Job, memory: NDArray[Any]
    ) -> None:
        self._transport = transport
        order, rank = Order(parameters), transport.rank
        weights, *rest = (torch.from_numpy(row) for row in memory)
        slots, rows = rest[: -transport.size], rest[-transport.size :]
        order.move(parameters, weights)
        low, high = order.share(rank, transport.size)
        self.optimizer = Optimizer(job, [weights], slots=slots, part=slice(low, high))
        self._given = [Cut(order, rows[rank], 0, low), Cut(order, rows[rank], high, order.count)]
        # This process's own share is added to what another has written for it.
        first, *others = (row for number, row in enumerate(rows) if number != rank)
        self._own = Cut(order, first, low, high)
        self._total, self._others = first[low:high], [row[low:high] for row in others]
        self._gradients: list[torch.Tensor] | None = None

    @staticmethod
    def memory(transport: Transport, parameters: list[torch.nn.Parameter], job: Job) -> NDArray[Any] | None:
        """The memory that this takes; None where the processes cannot share as much."""
        rows = 1 + len(Optimizer.slots_of(job)) + transport.size
        return transport.shared((rows, Order(parameters).count), job.dtype)

    def write(self, gradients: list[torch.Tensor] | None) -> None:
        self._gradients = gradients
        for given in self._given:
            given.set(gradients)

    def reduce(self) -> list[torch.Tensor]:
        self._transport.barrier()  # all rows are written, and nobody computes with the parameters any more
        self._own.add(self._gradients)
        for other in self._others:
            self._total += other
        return [self._total]

    def norm(self, gradients: list[torch.Tensor]) -> float:
        total = np.array([squares(gradients)])
        self._transport.all_reduce(total)
        return float(total[0]) ** 0.5

    def finish(self) -> None:
        self._transport.barrier()  # all slices are stepped
