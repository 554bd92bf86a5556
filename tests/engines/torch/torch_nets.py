"""Models as users write them, found by name in the processes that the tests drive."""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from torch import nn

#: A generator of the file, as some models have it.
OF_FILE = np.random.default_rng(5)


def logits(input_shape: tuple[int, int, int], classes: int, factor: float = 1.0) -> nn.Module:
    """One layer, whose weights start this many times larger than usual."""
    channels, height, width = input_shape
    layer = nn.Linear(channels * height * width, classes)
    layer.weight.data.mul_(factor)
    return nn.Sequential(nn.Flatten(), layer)


def softmax(input_shape: tuple[int, int, int], classes: int, factor: float = 1.0) -> nn.Module:
    """The same network, which ends in probabilities."""
    return nn.Sequential(*logits(input_shape, classes, factor), nn.Softmax(1))


class Standardizing(nn.Module):
    """Brings what it gets to mean 0 and deviation 1 by itself."""

    def __init__(self, inner: nn.Module, mean: list[float], deviation: list[float]) -> None:
        super().__init__()
        self.inner = inner
        self.mean, self.deviation = (torch.tensor(each, dtype=torch.float64) for each in (mean, deviation))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner((images - self.mean[:, None, None]) / self.deviation[:, None, None])


def standardizing(
    input_shape: tuple[int, int, int], classes: int, mean: list[float], deviation: list[float]
) -> nn.Module:
    """The same network as `logits` behind its own standardization."""
    return Standardizing(logits(input_shape, classes), mean, deviation)


def without_fused_kernels(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same network, on a PyTorch that has dropped its private optimizer kernels."""
    del torch._fused_adam_, torch._fused_sgd_
    return logits(input_shape, classes)


def log_softmax(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(*logits(input_shape, classes), nn.LogSoftmax(1))


def normalised(input_shape: tuple[int, int, int], classes: int, dropout: float = 0.0) -> nn.Module:
    """Batch normalisation, dropout and a layer that takes its size from the first batch."""
    channels, _, _ = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout),
        nn.LazyLinear(classes),
    )


def convolved(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.Tanh(), nn.Conv2d(4, 3, 3), nn.Flatten(),
        nn.Linear(3 * (height - 4) * (width - 4), classes),
    )


def repeating(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same activation in three places, as many people write it."""
    channels, height, width = input_shape
    act = nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 16), act, nn.Linear(16, 12), act,
                         nn.Linear(12, 8), act, nn.Linear(8, classes))


def normalising_twice(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same softmax behind two layers: it needs all numbers of an example."""
    channels, height, width = input_shape
    act = nn.Softmax(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 16), act, nn.Linear(16, 12), act,
                         nn.Linear(12, classes))


def sharing(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same layer twice."""
    channels, height, width = input_shape
    twice = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 16), nn.Tanh(), twice, nn.Tanh(), twice,
                         nn.Tanh(), nn.Linear(16, classes))


class Scaled(nn.Sequential):
    """Layers in a row that are not all it does."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1)) * 0.1


def scaled(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = input_shape
    return Scaled(nn.Linear(channels * height * width, 16), nn.Tanh(), nn.Linear(16, classes))


class Odd(nn.Module):
    """A frozen layer, one that nothing uses, one that is used now and then, one rarely, tied weights, and `view`."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(pixels, pixels)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.sometimes = nn.Linear(pixels, pixels)
        self.tied = self.sometimes
        self.rarely = nn.Linear(pixels, pixels)
        self.last = nn.Linear(pixels, classes)
        self.register_buffer("mask", torch.ones(pixels, dtype=torch.bool))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = torch.tanh(self.frozen(images.view(len(images), -1))) * self.mask
        if images[0, 0, 0, 0] > 0.25:
            flat = flat + self.tied(self.sometimes(flat))
        if images[0, 0, 0, 0] > 0.42:
            flat = flat + self.rarely(flat)
        return self.last(flat)


def odd(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = input_shape
    return Odd(channels * height * width, classes)


def unused(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Frozen and never used parameters only, so that the result does not depend on who sees which example."""
    channels, height, width = input_shape
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 6), nn.Tanh(), nn.Linear(6, classes))
    model[1].weight.requires_grad_(False)
    model.register_parameter("idle", nn.Parameter(torch.ones(3)))
    return model


class Fading(nn.Linear):
    """Makes its weights a little smaller whenever it is used in training."""

    def forward(self, flat: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.weight.data.mul_(0.99)
        return super().forward(flat)


def fading(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = input_shape
    return nn.Sequential(nn.Flatten(), Fading(channels * height * width, classes))


def frozen(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return logits(input_shape, classes).requires_grad_(False)


def wrong_shape(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(17, classes))


def wrong_outputs(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return logits(input_shape, classes + 1)


def no_module(input_shape: tuple[int, int, int], classes: int) -> object:
    return "no model"


class Caching(nn.Module):
    """Keeps a table that it computes from a batch, as position encodings do, and computes it anew in evaluation."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(pixels, 6), nn.Linear(6, classes)
        self.table: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.first(images.flatten(1))
        if self.table is None or not self.training:
            self.table = hidden.detach().mean(0).sigmoid()
        return self.last(hidden * self.table)


def caching(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = input_shape
    return Caching(channels * height * width, classes)


class Drawing(nn.Module):
    """Scales each batch by numbers from every generator that there is; they differ by rank if so wanted."""

    def __init__(self, pixels: int, classes: int, by_rank: bool) -> None:
        super().__init__()
        self.last = nn.Linear(pixels, classes)
        rank = int(os.environ.get("RANK", "0")) if by_rank else 0
        if rank:
            random.seed(rank)
            np.random.seed(rank)
        self.own = [np.random.Generator(np.random.Philox(rank)), random.Random(rank), np.random.RandomState(rank)]
        self.of_torch = torch.Generator().manual_seed(rank)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        drawn = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), OF_FILE.random()]
        drawn += [self.own[0].normal(), self.own[1].random(), self.own[2].rand()]
        drawn.append(float(torch.rand((), generator=self.of_torch)))
        return self.last(images.flatten(1)) * (1 + 0.1 * sum(drawn))


def drawing(input_shape: tuple[int, int, int], classes: int, by_rank: bool = False) -> nn.Module:
    channels, height, width = input_shape
    return Drawing(channels * height * width, classes, by_rank)


def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Biases and weights with rates of their own, and an optimizer that no job names."""
    vectors = [parameter for parameter in parameters if parameter.ndim == 1]
    others = [parameter for parameter in parameters if parameter.ndim > 1]
    return torch.optim.RMSprop([{"params": vectors, "lr": 0.002}, {"params": others}], lr=0.001, momentum=0.5)


def no_optimizer(parameters: list[nn.Parameter]) -> str:
    return "adam"


def many_losses(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters)


def deep(input_shape: tuple[int, int, int], classes: int, width: int = 1024, hidden: int = 1) -> nn.Module:
    """Layers of more than a million numbers each between two small ones."""
    channels, height, width_of_image = input_shape
    inner: list[nn.Module] = []
    for _ in range(hidden):
        inner += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width_of_image, width), nn.Tanh(), *inner, nn.Linear(width, classes)
    )


class Attending(nn.Module):
    """PyTorch's own transformer layer, whose attention uses the weights of its parts without calling them."""

    def __init__(self, pixels: int, classes: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)])
        self.last = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.first(images.flatten(1, 2))
        for block in self.blocks:
            rows = block(rows)
        return self.last(rows.mean(1))


def attending(input_shape: tuple[int, int, int], classes: int, width: int = 384) -> nn.Module:
    return Attending(input_shape[2], classes, width)


def counted(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """One layer whose weights begin as 0, 1/8, 2/8 and so on."""
    channels, height, width = input_shape
    layer = nn.Linear(channels * height * width, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(layer.weight.numel()).view_as(layer.weight) / 8)
        layer.bias.zero_()
    return nn.Sequential(nn.Flatten(), layer)


def rmsprop(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of one's own."""
    return torch.optim.RMSprop(parameters, 0.002, momentum=0.5)


class Planned(nn.Module):
    """Two dense layers that are no nn.Sequential, with a plan of how to divide them."""

    def __init__(self, pixels: int, classes: int, style: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(pixels, 16), nn.Linear(16, classes)
        self.tensor_plan = {"first": "column", "second": style}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(images.flatten(1))))


def planned(input_shape: tuple[int, int, int], classes: int, style: str = "row") -> nn.Module:
    channels, height, width = input_shape
    return Planned(channels * height * width, classes, style)


def staged(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A chain that says where its second stage begins."""
    channels, height, width = input_shape
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(),
        nn.Linear(12, classes), nn.Identity(),
    )
    model.stage_starts = ["5"]
    return model


class Mask(nn.Module):
    """Dropout of the same numbers of all examples, which keeps what it has drawn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.ones(width))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.drawn = nn.functional.dropout(torch.ones_like(self.drawn), 0.5)
        return rows * self.drawn


def masked(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A mask in each of two stages."""
    channels, height, width = input_shape
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), Mask(64), nn.Linear(64, 64), Mask(64),
                          nn.Linear(64, classes))
    model.stage_starts = ["3"]
    return model


def dropping(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same dropout in three places: before, between and after two layers that can be divided."""
    channels, height, width = input_shape
    drop = nn.Dropout(0.5)
    return nn.Sequential(nn.Flatten(), drop, nn.Linear(channels * height * width, 16), nn.ReLU(), drop,
                         nn.Linear(16, 16), drop, nn.Linear(16, classes))


class TakeLast(nn.Module):
    """Of what a recurrent layer returns, the outputs after the last row."""

    def forward(self, found: tuple[torch.Tensor, object]) -> torch.Tensor:
        return found[0][:, -1]


def recurrent(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A chain with a layer that returns more than one tensor: images are sequences of their rows."""
    return nn.Sequential(nn.Flatten(1, 2), nn.LSTM(input_shape[2], 8, batch_first=True), TakeLast(),
                         nn.Linear(8, classes))


def aliased(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A chain that has a tensor of one of its layers under a name of its own."""
    model = convolved(input_shape, classes)
    model.register_parameter("first", model[0].weight)
    return model


class Nested(nn.Module):
    """A chain within a model, called whole or layer by layer with something of the model's own between them."""

    def __init__(self, pixels: int, classes: int, whole: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(pixels, 16), nn.Tanh(), nn.Linear(16, 7))
        self.last, self.whole = nn.Linear(7, classes), whole

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1)
        if self.whole:
            return self.last(self.body(flat))
        hidden = self.body[0](flat)
        return self.last(self.body[2](torch.tanh(hidden - hidden.mean(1, keepdim=True))))


def nested(input_shape: tuple[int, int, int], classes: int, whole: bool = True) -> nn.Module:
    channels, height, width = input_shape
    return Nested(channels * height * width, classes, whole)
