"""Models that fail, or change, only on some batches or in one mode: what the trial before training must find."""

from __future__ import annotations

import random
import threading
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

Shape = tuple[int, int, int]


class Outputs(NamedTuple):
    features: torch.Tensor
    scores: torch.Tensor


class Net(nn.Module):
    """One linear layer with a peculiarity."""

    def __init__(self, pixels: int, classes: int, kind: str, size: int) -> None:
        super().__init__()
        self.layer, self.kind, self.size, self.calls = nn.Linear(pixels, classes), kind, size, 0
        self.norm = nn.BatchNorm1d(pixels) if kind == "batch-norm" else nn.Identity()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        if kind == "uncopyable":
            self.lock = threading.Lock()

    def forward(self, images: torch.Tensor) -> Any:
        flat = images.flatten(1)
        if self.kind == "fixed-batch":
            flat = images.view(self.size, -1)
        if self.kind == "own-check" and self.training and len(images) != self.size:
            raise ValueError(f"batches of {self.size} only")
        if self.kind == "functional-norm":
            flat = functional.batch_norm(flat, None, None, training=True)
        logits = self.layer(self.norm(flat))
        if self.kind in ("changes", "uncopyable") and self.training:
            self.calls += 1
            self.seen += len(images)
            self.layer.weight.data.mul_(0.5)
            noise = random.random() + np.random.rand() + torch.rand(())
            logits = self.dropout(logits) + noise
        if self.training:
            if self.kind == "tuple":
                return flat, logits
            if self.kind == "named":
                return Outputs(flat, logits)
            if self.kind == "mistake":
                raise RuntimeError("a mistake of the user's in training")
            if self.kind == "detached":
                return logits.detach()
            if self.kind == "library":
                return logits @ logits
        elif self.kind == "dictionary":
            return {"out": logits, "aux": logits}
        return logits


def build(input_shape: Shape, classes: int, kind: str, size: int = 16) -> nn.Module:
    return Net(int(np.prod(input_shape)), classes, kind, size)


def lazy(input_shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


class Extra(nn.Linear):
    """Has state that is no tensor."""

    def get_extra_state(self) -> Any:
        return {"note": "kept by the user"}

    def set_extra_state(self, state: Any) -> None:
        pass


def extra(input_shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Extra(64, classes))


def sparse(input_shape: Shape, classes: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    model.register_buffer("mask", torch.eye(3).to_sparse())
    return model


def lenet_for_28(input_shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 12 * 12, classes)
    )


def of_keras(input_shape: Shape, classes: int) -> Any:
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)])


def of_keras_that_fails(input_shape: Shape, classes: int) -> Any:
    """Its convolution takes what PyTorch calls channels for the height."""
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Conv2D(4, 3), keras.layers.Dense(classes)])


class Misfit(nn.Module):
    """Two layers that do not fit each other."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 7), nn.Linear(8, classes)

    def forward(self, images: torch.Tensor) -> Any:
        return self.second(self.first(images.flatten(1)))


def misfit(input_shape: Shape, classes: int) -> nn.Module:
    return Misfit(classes)
