"""Networks as a user writes them, for `benchmarks/own.py`: those of the zoo, by `module:function`, for PyTorch."""

from __future__ import annotations

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
