"""PyTorch's side of a task: its network, its batches, and what a saved model records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from velodrome.engines.torch.feed import Feed, Replica
from velodrome.engines.torch.network import Network
from velodrome.worker.context import Context


class TorchTask(ABC):
    """What a learner of any strategy needs to know of a task. The loss and what is counted are the network's objective
    (`engines/torch/objectives.py`)."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @abstractmethod
    def network(self, device: torch.device) -> Network:
        """The job's network with the weights that its seed decides, checked against the data, or the saved model that
        is to be evaluated."""

    @abstractmethod
    def feed(self, network: Network, replica: Replica) -> Feed:
        """The batches of this process."""

    @abstractmethod
    def description(self, network: Network) -> dict[str, Any]:
        """What is required, besides the weights, to load the model."""

    def write_extra_files(self, folder: Path) -> None:  # noqa: B027 (most have none)
        """Write further files that belong to the saved model."""


def task_of_job(context: Context) -> TorchTask:
    """PyTorch's side of the job's task."""
    task_class: type[TorchTask] = import_module(context.task.module("torch")).TASK
    return task_class(context)
