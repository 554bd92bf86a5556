"""Layers under `tensor` that PyTorch has no plan for: the LSTM, and dropout between divided layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional

from velodrome.engines.torch.strategies.pipeline_stages import is_plain_chain

_GATES = 4
State = tuple[torch.Tensor, torch.Tensor]


class _Copied(torch.autograd.Function):
    """What every process's part of a layer takes: its gradient is the sum of those of all parts."""

    @staticmethod
    def forward(context: Any, whole: torch.Tensor, group: distributed.ProcessGroup) -> torch.Tensor:
        context.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed, group=context.group)
        return summed, None


class _Gathered(torch.autograd.Function):
    """The units of all processes. All of them compute the same with these, so each takes its part of the gradient."""

    @staticmethod
    def forward(context: Any, part: torch.Tensor, group: distributed.ProcessGroup) -> torch.Tensor:
        context.place = part.shape[-1] * distributed.get_rank(group), part.shape[-1]
        parts = [torch.empty_like(part) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].narrow(-1, *context.place), None


def order_of_units(units: int, size: int) -> torch.Tensor:
    """The rows of a layer's matrices in the order in which every process has those of its units."""
    return torch.arange(_GATES * units).view(_GATES, size, -1).transpose(0, 1).reshape(-1)


def divide_lstm(lstm: nn.LSTM, mesh: DeviceMesh) -> torch.Tensor:
    """Leave this process its units of every layer, and return the order of rows in which they are divided."""
    order = order_of_units(lstm.hidden_size, mesh.size())
    for name, parameter in [*lstm.named_parameters()]:
        rows = parameter.detach()[order.to(parameter.device)].contiguous()
        divided = distribute_tensor(rows, mesh, [Shard(0)], src_data_rank=None)
        setattr(lstm, name, nn.Parameter(divided, requires_grad=parameter.requires_grad))
    lstm.forward = partial(_lstm_forward, lstm, mesh.get_group())  # type: ignore[method-assign]
    return order


def _lstm_forward(
    lstm: nn.LSTM, group: distributed.ProcessGroup, inputs: torch.Tensor, state: State
) -> tuple[torch.Tensor, State]:
    """What the whole LSTM returns for inputs (steps, rows, units) and the state before them."""
    width = lstm.hidden_size // distributed.get_world_size(group)
    first = width * distributed.get_rank(group)
    outputs, ends = inputs, list[State]()
    for layer, (hidden, whole_cell) in enumerate(zip(*state, strict=True)):
        of_inputs, of_hidden, bias, zero = (
            _part(getattr(lstm, f"{name}_l{layer}")) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        cell, steps = whole_cell.narrow(-1, first, width), list[torch.Tensor]()
        for gates in functional.linear(_Copied.apply(outputs, group), of_inputs, bias + zero).unbind():
            gates = gates + functional.linear(_Copied.apply(hidden, group), of_hidden)
            enter, forget, new, leave = gates.chunk(_GATES, -1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = _Gathered.apply(leave.sigmoid() * cell.tanh(), group)
            steps.append(hidden)
        outputs = torch.stack(steps)
        ends.append((hidden, _Gathered.apply(cell, group)))
    hidden, cell = (torch.stack(each) for each in zip(*ends, strict=True))
    return outputs, (hidden, cell)


def _part(parameter: torch.Tensor) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


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
    mine.forward = partial(_dropout_forward, mine, mesh.size(), mesh.get_local_rank())  # type: ignore[method-assign]
    return mine


def _dropout_forward(layer: nn.Dropout, size: int, rank: int, part: torch.Tensor) -> torch.Tensor:
    """What dropout leaves of this process's part of the outputs, which are divided by their last axis."""
    if not layer.training:
        return part
    *before, width = part.shape
    kept = functional.dropout(part.new_ones(*before, width * size), layer.p)
    return part * kept.narrow(-1, rank * width, width)
