"""The zoo as PyTorch modules: the same architectures as in `keras_zoo`, with the same initial distributions.

Images come as (channels, height, width) with values from 0 to 1, words as their places in a vocabulary, arrays as they
are; logits go out, or as many numbers as were asked for.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from velodrome.catalog.models import ARRAY_MODEL, check_shape, text_models, zoo_model
from velodrome.errors import BadRequest
from velodrome.models.torch_gpt import Gpt
from velodrome.models.torch_resnet import resnet20, start_he_normal

Shape = tuple[int, int, int]
#: Hidden and cell state of every row: h and c, each (layers, rows, units).
LstmState = tuple[torch.Tensor, torch.Tensor]


class Flatten(nn.Module):
    """Flattens height first and channels last, as Keras does; copies nothing of tensors in channels-last memory."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.permute(0, 2, 3, 1).flatten(1)


class Augment(nn.Module):
    """In training, flips images at random, shifts them by up to a tenth and changes their brightness by as much."""

    def __init__(self, shift: float = 0.1, brightness: float = 0.1) -> None:
        super().__init__()
        self.shift, self.brightness = shift, brightness

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return images
        count, _, height, width = images.shape
        device = images.device
        rows = self._shifted(count, height, device)
        columns = self._shifted(count, width, device)
        mirrored = torch.rand(count, 1, device=device) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
        each = torch.arange(count, device=device)
        moved = images.permute(0, 2, 3, 1)[each[:, None, None], rows[:, :, None], columns[:, None, :]]
        light = (torch.rand(count, 1, 1, 1, device=device, dtype=images.dtype) * 2 - 1) * self.brightness
        return moved.add_(light).clamp_(0.0, 1.0).permute(0, 3, 1, 2)

    def _shifted(self, count: int, size: int, device: torch.device) -> torch.Tensor:
        """For each pixel of the shifted images, the pixel it comes from; the outermost ones are repeated."""
        most = int(size * self.shift)
        by = torch.randint(-most, most + 1, (count, 1), device=device)
        return (torch.arange(size, device=device) + by).clamp_(0, size - 1)


class LanguageModel(nn.Module):
    """Takes words (rows, columns) and the LSTM state; returns logits of the words that follow (rows, columns,
    vocabulary) and the new state.

    Weights and biases start uniform. Each LSTM layer has one bias as in Keras: PyTorch's second stays zero.
    """

    def __init__(self, vocabulary: int, units: int, layers: int, limit: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.lstm = nn.LSTM(units, units, layers)
        self.softmax = nn.Linear(units, vocabulary)
        for name, parameter in self.named_parameters():
            if "bias_hh" in name:
                nn.init.zeros_(parameter.requires_grad_(False))
            else:
                nn.init.uniform_(parameter, -limit, limit)

    def forward(self, words: torch.Tensor, state: LstmState) -> tuple[torch.Tensor, LstmState]:
        outputs, state = self.lstm(self.embedding(words.t()), state)
        # Column by column in memory, as the LSTM returns them: one multiplication for the words of all steps.
        return self.softmax(outputs).transpose(0, 1), state

    def initial_state(self, rows: int) -> LstmState:
        """The state at the beginning of a text."""
        shape, like = (self.lstm.num_layers, rows, self.lstm.hidden_size), self.softmax.weight
        # Not made of the weight itself, which may be divided over processes.
        h, c = (torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        return h, c


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
    # tanh is increasing, so the maximum of a window is the same before and after it: pooling first needs a quarter.
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


def _fruit_cnn(shape: Shape, classes: int) -> OrderedDict[str, nn.Module]:
    channels, height, width = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict(augment=Augment())
    for number, filters in enumerate((16, 32, 64, 64), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        # relu never decreases, so the maximum of a window is the same before and after it.
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()
        channels, height, width = filters, height // 2, width // 2
    layers["flatten"] = Flatten()
    layers["dense1"] = nn.Linear(channels * height * width, 128)
    layers["relu5"] = nn.ReLU()
    layers["dense2"] = nn.Linear(128, classes)
    return layers


def _vgg_small(shape: Shape, classes: int) -> OrderedDict[str, nn.Module]:
    channels, height, width = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, filters in enumerate((32, 64), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()
        channels, height, width = filters, height // 2, width // 2
    return OrderedDict(
        layers, flatten=Flatten(), dense1=nn.Linear(channels * height * width, 1024), relu3=nn.ReLU(),
        dense2=nn.Linear(1024, 1024), relu4=nn.ReLU(), dense3=nn.Linear(1024, classes),
    )


_LAYERS: dict[str, Callable[[Shape, int], OrderedDict[str, nn.Module]]] = {
    "linear": _linear,
    "dense-128": _dense_128,
    "dense-300-100": _dense_300_100,
    "lenet5": _lenet5,
    "fruit-cnn": _fruit_cnn,
    "resnet20": resnet20,
    "vgg-small": _vgg_small,
}


def build(name: str, input_shape: Sequence[int], classes: int) -> nn.Module:
    """A model of the zoo with fresh weights, or `BadRequest` if it is unknown or cannot take the shape.

    Images are (channels, height, width); arrays may have any shape.
    """
    if name == ARRAY_MODEL:
        return _mlp(math.prod(input_shape), classes)
    channels, height, width = input_shape
    check_shape(name, (height, width, channels))
    model = nn.Sequential(_LAYERS[name]((channels, height, width), classes))
    if name == "resnet20":
        start_he_normal(model)
    else:
        _start_glorot_uniform(model)
    return model


def _mlp(numbers: int, outputs: int) -> nn.Module:
    layers = _dense(numbers, 128, 64, outputs)
    layers["flatten"] = nn.Flatten()
    model = nn.Sequential(layers)
    _start_glorot_uniform(model)
    return model


def _start_glorot_uniform(model: nn.Sequential) -> None:
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def build_text(name: str, vocabulary: int, context: int = 20) -> LanguageModel | Gpt:
    """A language model of the zoo with fresh weights, or `BadRequest` if there is none of that name.

    `context` is the largest number of words that a model without carried state reads at a time.
    """
    if zoo_model(name).task != "language-model":
        raise BadRequest(f"model {name!r} reads images, and the data set is a text: choose {text_models()}")
    if name == "gpt-mini":
        return Gpt(vocabulary, context)
    return LanguageModel(vocabulary, units=200, layers=2, limit=0.1)


def _pixels(shape: Shape) -> int:
    channels, height, width = shape
    return channels * height * width
