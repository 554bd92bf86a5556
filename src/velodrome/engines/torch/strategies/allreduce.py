"""`allreduce`: every process computes the gradient of its part of a batch, and the parts are summed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.engines.torch.fused_optimizer import SLOTS, FlatOptimizer, make_optimizer
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients, Optimizer, squared_norm
from velodrome.job.job import Job
from velodrome.transport.base import Transport

#: Parameters, and the slices of processes, begin at multiples of this many numbers: a cache line of 64 bytes.
_ALIGNMENT = 16


class FlatLayout:
    """Where each parameter lies in a flat buffer. Its memory format is kept: channels-last weights stay so."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._like = [torch.empty_like(parameter) for parameter in parameters]
        self.offsets, end = [], 0
        for parameter in parameters:
            self.offsets.append(end)
            end += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        self.count = end
        #: The numbers of a buffer that also says which parameters have a gradient.
        self.flagged = end + -(-len(parameters) // _ALIGNMENT) * _ALIGNMENT

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Start and end of each parameter."""
        return [(offset, offset + like.numel()) for like, offset in zip(self._like, self.offsets, strict=True)]

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """A buffer as one view for each parameter."""
        return [
            buffer.as_strided(like.shape, like.stride(), offset)
            for like, offset in zip(self._like, self.offsets, strict=True)
        ]

    def move(self, parameters: list[torch.nn.Parameter], buffer: torch.Tensor) -> None:
        """Copy the parameters into a buffer and make them views of it."""
        for parameter, view in zip(parameters, self.views(buffer), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def slice_of(self, rank: int, size: int) -> tuple[int, int]:
        """Start and end of the slice of a buffer that one of several processes updates."""
        lines = self.count // _ALIGNMENT
        return lines * rank // size * _ALIGNMENT, lines * (rank + 1) // size * _ALIGNMENT

    def flattened(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor shaped like a parameter, as one row in the order of the buffer."""
        like = self._like[number]
        if tensor.stride() != like.stride():
            tensor = torch.empty_like(like).copy_(tensor)
        return tensor.as_strided((tensor.numel(),), (1,))


class FlatSlice:
    """The part of a buffer between two positions, as views by parameter: whole ones, and cut ones at its ends."""

    def __init__(self, layout: FlatLayout, buffer: torch.Tensor, low: int, high: int) -> None:
        self._layout = layout
        self._chosen: list[tuple[int, slice | None]] = []
        self._views: list[torch.Tensor] = []
        for number, (view, offset) in enumerate(zip(layout.views(buffer), layout.offsets, strict=True)):
            start, stop = max(low - offset, 0), min(high - offset, view.numel())
            if start >= stop:
                continue
            whole = stop - start == view.numel()
            self._chosen.append((number, None if whole else slice(start, stop)))
            self._views.append(view if whole else buffer[offset + start : offset + stop])

    def write(self, gradients: Gradients | None) -> None:
        """Write this part of the gradients; None stands for zeros."""
        if gradients is None:
            for view in self._views:
                view.zero_()
            return
        for view, (number, part) in zip(self._views, self._chosen, strict=True):
            gradient = gradients[number]
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient if part is None else self._layout.flattened(number, gradient)[part])

    def add(self, gradients: Gradients | None) -> None:
        """Add this part of the gradients; None stands for zeros."""
        if gradients is None:
            return
        for view, (number, part) in zip(self._views, self._chosen, strict=True):
            gradient = gradients[number]
            if gradient is not None:
                view.add_(gradient if part is None else self._layout.flattened(number, gradient)[part])


class GradientReducer(ABC):
    """Sums the gradients of all processes. A step is `write`, `reduce`, the optimizer's step, `finish`."""

    #: What carries the gradients, as the result reports it.
    path: str
    optimizer: Optimizer

    @abstractmethod
    def write(self, gradients: Gradients | None) -> None:
        """Take the gradients of this process; None stands for none at all."""

    @abstractmethod
    def reduce(self) -> Gradients:
        """The sums that the optimizer takes. Blocks until all processes have called it."""

    def norm(self, gradients: Gradients) -> float:
        """The norm of the whole gradient. Blocks as `reduce` does."""
        return squared_norm(gradients) ** 0.5

    def finish(self) -> None:
        """Called after the optimizer's step, before the next forward pass. Blocks as `reduce` does."""
        return


def _write_flags(flags: NDArray[Any], gradients: Gradients | None) -> None:
    """Write 1 for each parameter that has a gradient, else 0; nothing where there are no flags."""
    if len(flags):
        flags[:] = 0 if gradients is None else [gradient is not None for gradient in gradients]


def _present(flags: NDArray[Any]) -> list[bool] | None:
    """Which parameters have a gradient by their summed flags; None if all have."""
    return None if flags.all() else (flags > 0).tolist()


class AllReduceReducer(GradientReducer):
    """The transport sums one flat gradient, and every process makes the whole step.

    In Velodrome's form the parameters are one flat tensor for the optimizer as well; in the stock form `torch.optim`,
    or the user's optimizer, steps each parameter where it lies.
    """

    path = "mpi"

    def __init__(
        self, transport: Transport, parameters: list[torch.nn.Parameter], job: Job, *, may_skip: bool
    ) -> None:
        """With `may_skip`, a step may leave parameters without a gradient."""
        self._transport = transport
        layout, like = FlatLayout(parameters), parameters[0]
        length = layout.flagged if may_skip else layout.count
        self._buffer = torch.zeros(length, dtype=like.dtype, device=like.device)
        self._gradient = self._buffer[: layout.count]
        self._views = layout.views(self._gradient)
        self._flat: FlatOptimizer | None = None
        if job.implementation == "stock" or job.has_own_optimizer:
            self.optimizer = make_optimizer(job, parameters)
        else:
            weights = torch.zeros_like(self._gradient)
            layout.move(parameters, weights)
            self.optimizer = self._flat = FlatOptimizer(job, weights, layout.bounds)
        self._on_host = self._buffer.cpu()  # the same memory, if it is the host's
        self._flags = self._on_host.numpy()[layout.count :][: len(parameters)]
        self._mine: Gradients | None = None

    def write(self, gradients: Gradients | None) -> None:
        self._mine = gradients
        if gradients is None:
            self._gradient.zero_()
            return
        for view, gradient in zip(self._views, gradients, strict=True):
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)

    def reduce(self) -> Gradients:
        if self._on_host is not self._buffer:
            self._on_host.copy_(self._buffer)
        _write_flags(self._flags, self._mine)
        self._transport.all_reduce(self._on_host.numpy())
        if self._on_host is not self._buffer:
            self._buffer.copy_(self._on_host)
        present = _present(self._flags)
        if self._flat is not None:
            self._flat.present = present
            return [self._gradient]
        return [view if present is None or present[index] else None for index, view in enumerate(self._views)]


class SharedMemoryReducer(GradientReducer):
    """Parameters and optimizer state lie once in memory that all processes map. Each process sums and steps a slice of
    them, so neither sums nor new weights are sent, and the optimizer's work is divided too.

    The rows of that memory: the parameters, the optimizer's slots, their average if there is one, and one per process
    for what it adds to the slices of the others, with its flags behind it. No process changes a parameter between
    `finish` and `reduce`, while all compute.

    A model that changes its own weights in `forward` would break this, because every process would change them. So a
    copy of the user's model is called once first; if it changes weights, or cannot be called, gradients are all-reduced
    instead. TensorFlow owns the memory of its tensors and would have to copy twice, so there MPI sums.
    """

    path = "shared-memory"

    def __init__(
        self, transport: Transport, parameters: list[torch.nn.Parameter], job: Job, memory: NDArray[Any]
    ) -> None:
        """`memory` is what `allocate` returned."""
        self._transport = transport
        layout, rank = FlatLayout(parameters), transport.rank
        weights, *rest = (torch.from_numpy(row) for row in memory[:, : layout.count])
        slots, rows = rest[: -transport.size], rest[-transport.size :]
        layout.move(parameters, weights)
        low, high = layout.slice_of(rank, transport.size)
        self._flat = self.optimizer = FlatOptimizer(job, weights, layout.bounds, slots=slots, part=slice(low, high))
        self._for_others = [FlatSlice(layout, rows[rank], 0, low), FlatSlice(layout, rows[rank], high, layout.count)]
        # The gradient of this process's own slice is added to what another one has written for it.
        first, *others = (row for number, row in enumerate(rows) if number != rank)
        self._own = FlatSlice(layout, first, low, high)
        self._total, self._others = first[low:high], [row[low:high] for row in others]
        #: A row for each process; rows of nothing where every step has all gradients.
        self._flags = memory[-transport.size :, layout.count :][:, : len(parameters)]
        self._mine: Gradients | None = None

    @staticmethod
    def allocate(
        transport: Transport, parameters: list[torch.nn.Parameter], job: Job, *, may_skip: bool
    ) -> NDArray[Any] | None:
        """The shared memory that a model requires; None where the processes cannot share as much. With `may_skip`, a
        step may leave parameters without a gradient."""
        rows, layout = 1 + len(SLOTS[job.optimizer]) + (job.ema is not None) + transport.size, FlatLayout(parameters)
        return transport.shared((rows, layout.flagged if may_skip else layout.count), job.weights_dtype)

    def write(self, gradients: Gradients | None) -> None:
        self._mine = gradients
        for part in self._for_others:
            part.write(gradients)
        _write_flags(self._flags[self._transport.rank], gradients)

    def reduce(self) -> Gradients:
        self._transport.barrier()  # all rows are written, and no process reads the parameters any more
        self._own.add(self._mine)
        for other in self._others:
            self._total += other
        if self._flags.size:
            self._flat.present = _present(self._flags.max(0))
        return [self._total]

    def norm(self, gradients: Gradients) -> float:
        squares = np.array([squared_norm(gradients)])
        self._transport.all_reduce(squares)
        return float(squares[0]) ** 0.5

    def finish(self) -> None:
        self._transport.barrier()  # all slices are stepped


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
