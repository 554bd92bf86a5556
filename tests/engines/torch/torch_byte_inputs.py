"""Models that scale their input in `forward`, as if it were bytes or not."""

from __future__ import annotations

import torch
from torch import nn

MEAN = torch.tensor([123.7]).view(1, -1, 1, 1)
SCALES = {
    "divide": lambda x: x / 255,
    "method": lambda x: x.float().div(255.0),
    "multiply": lambda x: x * (1 / 127.5) - 1,
    "subtract": lambda x: (x - MEAN) / 58.4,
    "flat": lambda x: x.flatten(1) / 256,
    # Not for bytes.
    "unit": lambda x: (x - 0.5) / 0.25,
    "plain": lambda x: x,
    "later": lambda x: (x * 2).relu() / 255,
}


class Scaled(nn.Module):
    def __init__(self, shape: tuple[int, int, int], classes: int, scale: str) -> None:
        super().__init__()
        self.scale = SCALES[scale]
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(self.scale(images).flatten(1))


def build(input_shape: tuple[int, int, int], classes: int, scale: str) -> nn.Module:
    return Scaled(input_shape, classes, scale)
