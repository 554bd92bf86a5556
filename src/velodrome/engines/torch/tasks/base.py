"""PyTorch's side of a task: what a network is trained on, whatever strategy combines the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from velodrome.engines.torch.network import Network
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import Indices, evaluation_indices
from velodrome.worker.context import Context
from velodrome.worker.learner import Part


class Stepper(Protocol):
    """The strategy, from the point of view of a task."""

    #: What is called with a batch.
    forward: nn.Module

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        """Make one step by the loss of this process's examples (None if it has none), their sum or one value each, in a
        batch of so many over all processes."""

    def idle_loss(self) -> torch.Tensor | None:
        """What a process without examples makes its step by; None if it need not compute."""

    def sum(self, number: float) -> float:
        """The sum of a number over all processes, in each of them."""


class Replica(NamedTuple):
    """One process among those that train together."""

    rank: int
    size: int
    device: torch.device
    #: Whether forward passes wait for one another, so that every process must make as many.
    together: bool = False

    def evaluation_batches(self, examples: int, batch: int) -> tuple[Indices, Indices]:
        """The examples of a set that this process evaluates, and where its batches of at most `batch` begin and end."""
        mine = evaluation_indices(examples, self.rank, self.size)
        if not self.together:
            return mine, np.minimum(np.arange(0, len(mine) + batch, batch), len(mine))
        count = -(-len(range(0, examples, self.size)) // batch)  # as many as the process with the most has
        return mine, len(mine) * np.arange(count + 1, dtype=np.int64) // max(1, count)


class EvaluationCounts(NamedTuple):
    """What this process counted in an evaluation; the confusion matrix, where there is one, flattened by rows."""

    counts: Counts
    confusion: NDArray[np.float64] | None = None
    #: For every example of the part, whether this process classified it correctly; None where no answer is right.
    answers: NDArray[np.bool_] | None = None
    #: For every example of the part, the scores that this process computed, zero for those of others, flattened; None
    #: where a task needs none.
    scores: NDArray[np.float64] | None = None


class TorchTask(ABC):
    """PyTorch's side of a task: feeds batches to a network and counts losses and predictions."""

    #: The current epoch, counted from 1; set by the learner before `begin_epoch`.
    epoch: int = 0

    def __init__(self, context: Context, network: Network, replica: Replica) -> None:
        self._context, self._network, self._replica = context, network, replica

    @classmethod
    @abstractmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        """The job's network with the weights that its seed decides, checked against the data."""

    @abstractmethod
    def begin_epoch(self, schedule: Any) -> None: ...

    @abstractmethod
    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        """Train the steps of a chunk; nothing is read back from the device before its end."""

    @abstractmethod
    def evaluate(self, part: Part) -> EvaluationCounts:
        """Evaluate this process's share of a part."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What is required, besides the weights, to load the model."""

    def write_extra_files(self, folder: Path) -> None:  # noqa: B027 (most have none)
        """Write further files that belong to the saved model."""


def task_class(context: Context) -> type[TorchTask]:
    """PyTorch's side of the job's task; classification of anything but byte images is that of arrays."""
    module = "velodrome.engines.torch.tasks.arrays" if context.data.kind == "arrays" else context.task.module("torch")
    found: type[TorchTask] = import_module(module).TASK
    return found
