"""The zoo as PyTorch modules: builds the networks that `catalog/models.py` describes.

Images come as (channels, height, width) with values from 0 to 1, words as their places in a vocabulary, arrays as they
are; logits go out, or as many numbers as were asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.catalog import models as zoo
from velodrome.catalog.models import Lstm, Sized, Transformer, check_shape, text_models, zoo_model
from velodrome.errors import BadRequest

#: Hidden and cell state of every row: h and c, each (layers, rows, units).
LstmState = tuple[torch.Tensor, torch.Tensor]


class Flatten(nn.Module):
    """Flattens height first and channels last, as Keras does; tensors in channels-last memory are not copied."""

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


class LanguageModel(nn.Module):
    """Takes words (rows, columns) and the LSTM state; returns logits of the words that follow (rows, columns,
    vocabulary) and the new state.

    Weights and biases start uniform. Each LSTM layer has one bias as in Keras: PyTorch's second stays zero.
    """

    def __init__(self, vocabulary: int, about: Lstm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, about.units)
        self.lstm = nn.LSTM(about.units, about.units, about.layers)
        self.softmax = nn.Linear(about.units, vocabulary)
        for name, parameter in self.named_parameters():
            if "bias_hh" in name:
                nn.init.zeros_(parameter.requires_grad_(False))
            else:
                nn.init.uniform_(parameter, -about.limit, about.limit)

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


class Block(nn.Module):
    """Attention to the words so far, then two dense layers, each around a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        rows, columns, width = stream.shape
        # Of all heads, or of some where the layers are divided over processes.
        split = self.qkv(self.norm1(stream)).view(rows, columns, 3, -1, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attended(heads.transpose(1, 2).flatten(2))
        return stream + self.contract(functional.gelu(self.expand(self.norm2(stream))))


class Gpt(nn.Module):
    """Takes words (rows, columns); returns logits of the words that follow (rows, columns, vocabulary)."""

    def __init__(self, vocabulary: int, context: int, about: Transformer) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, about.width)
        self.positions = nn.Embedding(context, about.width)
        self.blocks = nn.ModuleList(Block(about.width, about.heads) for _ in range(about.layers))
        self.norm = nn.LayerNorm(about.width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=about.deviation_of(name.removesuffix(".weight")))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        stream = self.words(words) + self.positions.weight[: words.shape[1]]
        for block in self.blocks:
            stream = block(stream)
        return functional.linear(self.norm(stream), self.words.weight)


def build(name: str, input_shape: Sequence[int], classes: int) -> nn.Module:
    """A model of the zoo with fresh weights, or `BadRequest` if it is unknown or cannot take the shape.

    Images are (channels, height, width); arrays may have any shape.
    """
    about, shape = zoo_model(name), tuple(input_shape)
    if about.takes == "images":
        channels, height, width = shape
        shape = height, width, channels
        check_shape(name, shape)
    assert isinstance(about.network, tuple), "layers one after another"
    model = nn.Sequential(OrderedDict(
        (each.name, _module(each, images=about.takes == "images"))
        for each in zoo.sized(about.network, shape, classes)
    ))
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            if about.start == "he-normal":
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            else:
                nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def _module(each: Sized, *, images: bool) -> nn.Module:
    before, after = each.before[-1], each.after[-1]
    match each.layer:
        case zoo.Augment():
            return Augment()
        case zoo.Flatten():
            return Flatten() if images else nn.Flatten()
        case zoo.Dense():
            return nn.Linear(before, after)
        case zoo.Conv(filters, size, padding, bias):
            return nn.Conv2d(before, filters, size, padding=padding, bias=bias)
        case zoo.Norm():
            return nn.BatchNorm2d(after)
        case zoo.Pool():
            return nn.MaxPool2d(2)
        case zoo.Activation(function):
            return nn.ReLU() if function == "relu" else nn.Tanh()
        case zoo.Residual(filters, stride):
            return Residual(before, filters, stride)
        case zoo.Average():
            return GlobalAverage()
    raise NotImplementedError(each.layer)


def build_text(name: str, vocabulary: int, context: int = 20) -> LanguageModel | Gpt:
    """A language model of the zoo with fresh weights, or `BadRequest` if there is none of that name.

    `context` is the largest number of words that a model without carried state reads at a time.
    """
    match zoo_model(name).network:
        case Transformer() as transformer:
            return Gpt(vocabulary, context, transformer)
        case Lstm() as lstm:
            return LanguageModel(vocabulary, lstm)
    raise BadRequest(f"model {name!r} reads images, but the data set is a text: choose {text_models()}")
