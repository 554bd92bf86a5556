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
from velodrome.worker.context import Context
from velodrome.worker.learner import Part


class Stepper(Protocol):
    """The strategy, as a task sees it."""

    #: Whether it takes part in a step only by a forward and a backward pass, even without examples.
    always_computes: bool
    #: What is called with a batch.
    forward: nn.Module

    def step(self, loss: torch.Tensor | None, batch: int) -> None:
        """Train by the summed loss of this process's part, possibly none, of a batch of so many over all processes."""


class Place(NamedTuple):
    """One process among those that train together."""

    rank: int
    size: int
    device: torch.device


class Seen(NamedTuple):
    """What this process counted in an evaluation; the confusion flat, class by class, where there is one."""

    counts: Counts
    confusion: NDArray[np.float64] | None = None


class TorchTask(ABC):
    """PyTorch's side of a task: gives a network its batches and counts what it makes of them."""

    def __init__(self, context: Context, network: Network, place: Place) -> None:
        self._context, self._network, self._place = context, network, place

    @classmethod
    @abstractmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        """The job's network with the weights that its seed decides, checked against the data."""

    @abstractmethod
    def begin_epoch(self, schedule: Any) -> None: ...

    @abstractmethod
    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        """The steps of a chunk. Nothing is read back from the device before its end."""

    @abstractmethod
    def evaluate(self, part: Part) -> Seen:
        """This process's share of a part."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What is needed, besides the weights, to use the model again."""

    def write_beside(self, folder: Path) -> None:  # noqa: B027 (most have nothing)
        """Files that belong to the saved model."""


def task_class(context: Context) -> type[TorchTask]:
    """PyTorch's side of the job's task."""
    found: type[TorchTask] = import_module(context.task.module("torch")).TASK
    return found
