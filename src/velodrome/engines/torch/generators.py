"""PyTorch's random number generators: the global ones of a model's devices, and those that a model holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from velodrome.models.generators import KINDS, Generator, Generators, of_model


def _of_torch(one: Any) -> Generator:
    """Of a `torch.Generator`."""
    return Generator(lambda: one.get_state().numpy(), lambda state: one.set_state(torch.from_numpy(state)))


def generators_of(model: nn.Module) -> Generators:
    """PyTorch's generators that a model may draw from, and those of any kind that it holds."""
    found = {"torch": _of_torch(torch.default_generator)}
    for device in sorted({tensor.device.index for tensor in model.parameters() if tensor.is_cuda}):
        found[f"cuda:{device}"] = _of_torch(torch.cuda.default_generators[device])
    return found | of_model(model, nn.Module, {**KINDS, torch.Generator: _of_torch})
