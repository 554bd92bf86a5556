"""The servers of `parameter-server`: slices of weights and optimizer state, stepped by the fused kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from velodrome.consistency.policies import policy_of
from velodrome.engines.torch.fused_optimizer import FlatOptimizer
from velodrome.engines.torch.optimizer import squared_norm
from velodrome.job.job import Job
from velodrome.training.context import Context
from velodrome.transport.parameter_server import ParameterServer, open_listener
from velodrome.transport.server_links import Numbers

#: The first row of what a server keeps; those behind it are the tensors of the optimizer's state, in its order.
WEIGHTS = 0


class TorchStore:
    """The slice of a server: weights and optimizer state, stepped by the fused kernels."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def prepare(self, layout: Numbers) -> None:
        """From the number of weights, whether pushes say which parameters have a gradient, and the start and end of the
        piece of each parameter."""
        count, flagged, *bounds = layout.tolist()
        pieces = list(zip(bounds[::2], bounds[1::2], strict=True))
        self._weights = torch.zeros(count, dtype=getattr(torch, self._job.weights_dtype))
        self._flags = len(pieces) if flagged else 0
        self._optimizer = FlatOptimizer(self._job, self._weights, pieces)
        self._rows = [self._weights, *self._optimizer.state().values()]

    def row(self, number: int) -> Numbers:
        return self._rows[number].reshape(-1).numpy()

    def written(self, number: int) -> None:
        self._optimizer.load({})  # whether all parameters have made the same number of steps
        average = self._optimizer.whole_average
        if number == WEIGHTS and average is not None:
            average.averages[0].copy_(self._weights)

    def gradient(self) -> Numbers:
        return np.zeros(len(self._weights) + self._flags, self.row(WEIGHTS).dtype)

    def total(self, gradients: Sequence[Numbers]) -> Numbers:
        total, *others = gradients
        for other in others:  # in the order of ranks, so that sums are the same every time
            total += other
        return total

    def squared_norm(self, total: Numbers) -> float:
        return squared_norm([torch.from_numpy(total[: len(self._weights)])])

    def apply(self, total: Numbers, rate: float, factor: float) -> None:
        gradient, flags = torch.from_numpy(total[: len(self._weights)]), total[len(self._weights) :]
        if factor != 1:
            gradient.mul_(factor)
        self._optimizer.present = None if flags.all() else (flags > 0).tolist()
        self._optimizer.rate = rate
        self._optimizer.step([gradient])


def serve(context: Context) -> None:
    """Be one of the job's servers until its workers have left."""
    torch.set_num_threads(context.threads)
    workers = context.world.of_role("worker")
    with context.events.phase("connect"), context.waiting():
        policy = policy_of(context.strategy.consistency)
        server = ParameterServer(TorchStore(context.job), policy, len(workers), lambda rank: str(workers[rank]))
        listener = open_listener(context.world.me, len(workers))
        try:
            server.serve(listener)
        finally:
            listener.close()
