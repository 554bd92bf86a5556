"""The benchmark's networks as PyTorch's own modules, layer for layer those of Velodrome's zoo."""

from __future__ import annotations

from torch import nn


def build(name: str) -> nn.Module:
    if name == "dense-300-100":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
        )
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Tanh(),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Tanh(),
        nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10),
    )  # fmt: skip
