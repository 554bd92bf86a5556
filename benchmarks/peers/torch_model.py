"""The benchmark's networks as PyTorch's own modules, layer for layer those of Velodrome's zoo, with data and loss."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as functional
from task import CONTEXT, VOCABULARY, Task, read_data
from torch import nn
from torch.utils.data import TensorDataset


def build(name: str) -> nn.Module:
    if name == "dense-300-100":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
        )
    if name == "resnet20":
        return resnet20()
    if name == "gpt-mini":
        return Gpt()
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Tanh(),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Tanh(),
        nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10),
    )  # fmt: skip


def dataset(task: Task) -> TensorDataset:
    inputs, targets = map(torch.from_numpy, read_data(task))
    return TensorDataset(inputs if task.reads_text else inputs.permute(0, 3, 1, 2).contiguous(), targets)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over examples, or over words."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Block(nn.Module):
    """A residual block; where the number of filters grows, the shortcut takes every second pixel and adds zeros."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.added = after - before
        self.first = nn.Sequential(
            nn.Conv2d(before, after, 3, 2 if self.added else 1, 1, bias=False), nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.second(self.first(inputs))
        if self.added:
            inputs = functional.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        return functional.relu(outputs + inputs, inplace=True)


def resnet20() -> nn.Module:
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        *(Block(before, after) for before, after in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )


class Layer(nn.Module):
    """A layer of the transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        rows, columns, width = stream.shape
        split = self.qkv(self.before(stream)).view(rows, columns, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        stream = stream + self.out(mixed.transpose(1, 2).reshape(rows, columns, width))
        return stream + self.mlp(self.between(stream))


class Gpt(nn.Module):
    """A decoder-only transformer of four layers with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, 128), nn.Embedding(CONTEXT, 128)
        self.layers = nn.Sequential(*(Layer(128, 4) for _ in range(4)))
        self.norm = nn.LayerNorm(128)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        stream = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        return self.norm(self.layers(stream)) @ self.words.weight.T
