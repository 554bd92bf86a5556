"""A user's networks and task for `benchmarks/own.py`: those of the zoo, by `module:name`, for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn


def dense_300_100(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, classes),
    )


def lenet5(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 20, 5), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Tanh(),
        nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, classes),
    )


class Classify:
    """Classification, as a task of the user's own."""

    better = {"accuracy": "more"}  # noqa: RUF012 (as users write it)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch.x), batch.y, reduction="none")

    def metrics(self, outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch.y).sum()}
