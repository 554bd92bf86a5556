"""The zoo as PyTorch modules: the same architectures as in `keras_zoo`, with Keras' own initial distribution.

Images come as (channels, height, width) with values from 0 to 1; logits go out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from velodrome.models.zoo import check_shape

Shape = tuple[int, int, int]


class Flatten(nn.Module):
    """Flattens height first and channels last, as Keras does; free of charge for tensors in channels-last memory."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.permute(0, 2, 3, 1).flatten(1)


def _dense(*widths: int) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=Flatten())
    for number, (before, after) in enumerate(pairwise(widths), start=1):
        if number > 1:
            layers[f"relu{number - 1}"] = nn.ReLU()
        layers[f"dense{number}"] = nn.Linear(before, after)
    return layers


def _linear(shape: Shape, classes: int) -> OrderedDict[str, nn.Module]:
    return _dense(_pixels(shape), classes)


def _dense_128(shape: Shape, classes: int) -> OrderedDict[str, nn.Module]:
    return _dense(_pixels(shape), 128, classes)


def _dense_300_100(shape: Shape, classes: int) -> OrderedDict[str, nn.Module]:
    return _dense(_pixels(shape), 300, 100, classes)


def _lenet5(shape: Shape, classes: int) -> OrderedDict[str, nn.Module]:
    channels, height, width = shape
    for _ in range(2):
        height, width = (height - 4) // 2, (width - 4) // 2
    # The largest of a window is the same before and after tanh, which rises: pooling first asks for a quarter of them.
    return OrderedDict(
        conv1=nn.Conv2d(channels, 20, 5),
        pool1=nn.MaxPool2d(2),
        tanh1=nn.Tanh(),
        conv2=nn.Conv2d(20, 50, 5),
        pool2=nn.MaxPool2d(2),
        tanh2=nn.Tanh(),
        flatten=Flatten(),
        dense1=nn.Linear(50 * height * width, 500),
        tanh3=nn.Tanh(),
        dense2=nn.Linear(500, classes),
    )


_LAYERS: dict[str, Callable[[Shape, int], OrderedDict[str, nn.Module]]] = {
    "linear": _linear,
    "dense-128": _dense_128,
    "dense-300-100": _dense_300_100,
    "lenet5": _lenet5,
}


def build(name: str, input_shape: Shape, classes: int) -> nn.Module:
    """A model of the zoo with fresh weights, or `BadRequest` if it is unknown or cannot take the shape."""
    channels, height, width = input_shape
    check_shape(name, (height, width, channels))
    model = nn.Sequential(_LAYERS[name](input_shape, classes))
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def _pixels(shape: Shape) -> int:
    channels, height, width = shape
    return channels * height * width
