"""ResNet-20 for small images in PyTorch (He et al. 2015, section 4.2): three stages of three residual blocks.

Shortcuts have no parameters (their option A): where a stage begins, the image is subsampled and the new channels are
zero. Convolutions have no bias, because batch normalisation follows each.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as functional
from torch import nn

#: Filters of the stages, and blocks of each: 6 · 3 + 2 = 20 layers with weights.
STAGES, BLOCKS = (16, 32, 64), 3


class Residual(nn.Module):
    """Two 3×3 convolutions and a shortcut around them; with `stride` 2, half the height and width go out."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self._stride, self._added = stride, after - before
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu_(self.norm1(self.conv1(images)))
        return functional.relu_(self.norm2(self.conv2(hidden)) + self._shortcut(images))

    def _shortcut(self, images: torch.Tensor) -> torch.Tensor:
        if not self._added:
            return images
        return functional.pad(images[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._added))


class GlobalAverage(nn.Module):
    """The mean of each channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


def resnet20(shape: tuple[int, int, int], classes: int) -> OrderedDict[str, nn.Module]:
    """The layers for images of (channels, height, width)."""
    before = STAGES[0]
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(shape[0], before, 3, padding=1, bias=False), norm=nn.BatchNorm2d(before), relu=nn.ReLU()
    )
    for stage, filters in enumerate(STAGES, start=1):
        for block in range(1, BLOCKS + 1):
            layers[f"stage{stage}_block{block}"] = Residual(before, filters, 1 if before == filters else 2)
            before = filters
    return OrderedDict(layers, average=GlobalAverage(), dense=nn.Linear(before, classes))


def start_he_normal(model: nn.Module) -> None:
    """Draw all weights from a normal distribution of variance 2 / fan-in (He et al. 2015); biases are zero."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
