"""Networks of one linear layer that end as users' models do: in logits, in a softmax of some kind, or past one."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import nn

Shape = tuple[int, int, int]


def _linear(input_shape: Shape, classes: int) -> nn.Linear:
    channels, height, width = input_shape
    return nn.Linear(channels * height * width, classes)


class Ending(nn.Module):
    """The layer, and a function of what it returns and of whether the model is in training."""

    def __init__(self, layer: nn.Module, end: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.end = layer, end

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.end(self.layer(images.flatten(1)), self.training)


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner(images)


def _hand_written(logits: torch.Tensor) -> torch.Tensor:
    powers = (logits - logits.max(1, keepdim=True).values).exp()
    return powers / powers.sum(1, keepdim=True)


def _convolutional(logits: torch.Tensor) -> torch.Tensor:
    return functional.softmax(logits[:, :, None, None], dim=1).squeeze(-1).flatten(1)


ENDS: dict[str, Callable[[torch.Tensor, bool], torch.Tensor]] = {
    "functional": lambda logits, _: functional.softmax(logits, dim=1),
    "torch-softmax": lambda logits, _: torch.softmax(logits, -1),
    "method": lambda logits, _: logits.softmax(dim=1),
    "named": lambda logits, _: functional.softmax(input=logits, dim=1),
    "convolutional": lambda logits, _: _convolutional(logits),
    "indexed": lambda logits, _: functional.softmax(logits[:, None], dim=-1)[:, 0],
    "transposed": lambda logits, _: logits.t().softmax(0).transpose(0, 1),
    "cloned": lambda logits, _: functional.softmax(logits, dim=1).clone(),
    "exponential": lambda logits, _: functional.log_softmax(logits, dim=1).exp(),
    "in-evaluation": lambda logits, training: logits if training else logits.softmax(1),
    "in-training": lambda logits, training: logits.softmax(1) if training else logits,
    "inner-softmax": lambda logits, _: logits * logits.softmax(1).detach().mul(0).add(1),
    "log-softmax": lambda logits, _: functional.log_softmax(logits, dim=1),
    "logits": lambda logits, _: logits,
    # Not to be mistaken for one.
    "sigmoid": lambda logits, _: logits.sigmoid(),
    "scaled": lambda logits, _: logits.softmax(1) * 3,
    "over-examples": lambda logits, _: logits.softmax(0),
    "logarithm": lambda logits, _: logits.softmax(1).log(),
    "hand-written": lambda logits, _: _hand_written(logits),
}


def build(input_shape: Shape, classes: int, end: str) -> nn.Module:
    layer = _linear(input_shape, classes)
    if end == "module":
        return nn.Sequential(nn.Flatten(), layer, nn.Softmax(dim=1))
    if end == "nested":
        return nn.Sequential(nn.Flatten(), nn.Sequential(layer, nn.Sequential(nn.Identity(), nn.Softmax(dim=-1))))
    if end == "wrapped":
        return Wrapped(Wrapped(nn.Sequential(nn.Flatten(), layer, nn.Softmax(dim=1))))
    if end == "scripted":
        return torch.jit.script(nn.Sequential(nn.Flatten(), layer, nn.Softmax(dim=1)))
    if end == "compiled":
        return torch.compile(nn.Sequential(nn.Flatten(), layer, nn.Softmax(dim=1)), backend="eager")
    if end == "softmax-then-linear":
        return nn.Sequential(nn.Flatten(), layer, nn.Softmax(dim=1), nn.Linear(classes, classes))
    return Ending(layer, ENDS[end])
