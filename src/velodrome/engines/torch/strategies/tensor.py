"""`tensor`: every process computes all examples with a part of each dense layer, by PyTorch's `parallelize_module`.

Of two dense layers that follow one another, the first is divided by its outputs (column) and the second by its inputs
(row): only the outputs of the second are summed over the processes. The zoo's LSTM is divided by its units, which
PyTorch has no plan for; nor has it one for dropout between divided layers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional

from velodrome.engines.torch.fused_optimizer import FusedOptimizer
from velodrome.engines.torch.optimizer import Gradients, Optimizer
from velodrome.engines.torch.process_group import ProcessGroup, Subgroup, translate_peer_errors
from velodrome.engines.torch.strategies.pipeline_stages import is_plain_chain
from velodrome.engines.torch.strategies.plans import checked_plan, plan_for, plan_of
from velodrome.engines.torch.strategies.sharding import DividedLearner, local, pieced
from velodrome.models.torch_zoo import Block

_GATES = 4
State = tuple[torch.Tensor, torch.Tensor]


def order_of_heads(heads: int, width: int, size: int) -> torch.Tensor:
    """The rows of a layer of queries, keys and values in the order in which every process has those of its heads."""
    rows = torch.arange(3 * width).view(3, size, heads // size, width // heads)
    return rows.transpose(0, 1).reshape(-1)


def _style(style: str, layer: nn.Module) -> ParallelStyle:
    if style == "row":
        # Rows of an embedding are words, of which every process gets all.
        return RowwiseParallel(input_layouts=Replicate()) if isinstance(layer, nn.Embedding) else RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate()) if style == "gather" else ColwiseParallel()


class TensorLearner(DividedLearner):
    """One process's part of the dense layers, and everything else."""

    _transport: ProcessGroup

    def _make_optimizer(self) -> Optimizer:
        for parameter in self._model.parameters():
            parameter.data = parameter.data.contiguous()
        grid = self._enter_mesh()
        if grid is None:
            mesh = DeviceMesh.from_group(self._transport.group, self._device.type)
        else:
            mesh, self._among = grid.mesh["tensor"], grid.peers
        self._members = self._transport.size // self._groups
        plan = checked_plan(self._context.job.model, self._model, self._agreed_plan(), self._members)
        orders = {name: self._in_heads(name) for name, style in plan.items() if style == "heads"}
        for name in [name for name, style in plan.items() if style == "units"]:
            lstm = self._model.get_submodule(name)
            assert isinstance(lstm, nn.LSTM)
            orders[name] = divide_lstm(lstm, mesh)
        parallelize_module(self._model, mesh, {
            name: _style(style, self._model.get_submodule(name)) for name, style in plan.items() if style != "units"
        })
        divide_dropout(self._model, plan, mesh)
        self._orders = {parameter: order for name, order in orders.items()
                        for parameter in self._model.get_submodule(name).parameters()}
        return self._divided_optimizer()

    def _agreed_plan(self) -> dict[str, str]:
        """The model's own, or what rank 0 derives: a trial need not have the same outcome in every process."""
        if getattr(self._model, "tensor_plan", None) is not None:
            return plan_of(self._model, self._members)
        first, *_ = self.gather(json.dumps(plan_for(self._network, self._members)).encode())
        plan: dict[str, str] = json.loads(first)
        return plan

    def _in_heads(self, name: str) -> torch.Tensor:
        """Arrange the rows of a layer by the heads of each process, and return their order."""
        block = self._model.get_submodule(name.rpartition(".")[0])
        assert isinstance(block, Block)
        order = order_of_heads(block.heads, block.qkv.in_features, self._members)
        for parameter in block.qkv.parameters():
            parameter.data = parameter.data[order.to(parameter.device)].contiguous()
        return order

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        """Those of all groups together, where there are several; a parameter that none has a gradient of has none."""
        if self._groups == 1:
            return super()._gradients(loss)
        gradients = [None] * len(self._trained) if loss is None else super()._gradients(loss)
        parts = [torch.zeros_like(local(like)) if gradient is None else local(gradient, like)
                 for gradient, like in zip(gradients, self._trained, strict=True)]
        present = parts[0].new_tensor([float(gradient is not None) for gradient in gradients])
        flat = torch.cat([*(part.reshape(-1) for part in parts), present])
        assert isinstance(self._among, Subgroup)
        with self._context.waiting(), translate_peer_errors():
            distributed.all_reduce(flat, group=self._among.group)
        *pieces, counts = flat.split([*(part.numel() for part in parts), len(parts)])
        summed = [each.view(part.shape) if count else None
                  for each, part, count in zip(pieces, parts, counts.tolist(), strict=True)]
        if isinstance(self._optimizer, FusedOptimizer):
            return summed
        return [None if each is None else pieced(each, like) for each, like in zip(summed, self._trained, strict=True)]


# -- layers


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
