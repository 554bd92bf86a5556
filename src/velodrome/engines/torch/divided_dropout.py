"""Dropout under `tensor`, between a layer that is divided by its outputs and the next: a process has some of the
numbers that it drops."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from velodrome.engines.torch.stages import is_plain_chain


def divide_dropout(model: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Let dropout between layers of a chain that the plan divides drop what it would of the whole outputs.

    The generators of all processes are in the same state, for outputs that each of them has. So they all draw for the
    whole, and each takes its part: masks of parts that are drawn from the same state would be the same.
    """
    for name, chain in model.named_modules():
        if not is_plain_chain(chain):
            continue
        is_divided = False
        for key, layer in list(chain._modules.items()):
            style = plan.get(f"{name}.{key}" if name else key)
            is_divided = style == "column" or (is_divided and style != "row")
            if is_divided and isinstance(layer, nn.Dropout):
                chain._modules[key] = _divided(layer, mesh)


def _divided(layer: nn.Dropout, mesh: DeviceMesh) -> nn.Dropout:
    """A dropout of its own for this place: the layer may be in others, where outputs are whole."""
    mine = copy.copy(layer)
    mine.forward = partial(_forward, mine, mesh.size(), mesh.get_local_rank())  # type: ignore[method-assign]
    return mine


def _forward(layer: nn.Dropout, size: int, rank: int, part: torch.Tensor) -> torch.Tensor:
    """What dropout leaves of this process's part of the outputs, which are divided by their last axis."""
    if not layer.training:
        return part
    *before, width = part.shape
    kept = functional.dropout(part.new_ones(*before, width * size), layer.p)
    return part * kept.narrow(-1, rank * width, width)
