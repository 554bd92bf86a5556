"""`tensor`: every process computes all examples with a part of each dense layer, by PyTorch's `parallelize_module`.

Of two dense layers that follow one another, the first is divided by its outputs (column) and the second by its inputs
(row): only the outputs of the second are summed over the processes. The zoo's LSTM is divided by its units.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeGuard

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.utils.parametrize import is_parametrized

from velodrome.engines.torch.fused_optimizer import FusedOptimizer
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.optimizer import Gradients, Optimizer
from velodrome.engines.torch.process_group import ProcessGroup, Subgroup, translate_peer_errors
from velodrome.engines.torch.strategies.pipeline_stages import is_plain_chain
from velodrome.engines.torch.strategies.sharding import Covers, DividedLearner, covers_of, local, pieced
from velodrome.engines.torch.strategies.tensor_layers import divide_dropout, divide_lstm
from velodrome.errors import BadRequest, UsersCodeFailed
from velodrome.models.torch_zoo import Block, LanguageModel

#: Layers that compute each number by itself, so that it does not matter to them how these are divided; `divide_dropout`
#: makes dropout one of them.
_ELEMENTWISE = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Softplus, nn.Hardtanh, nn.ReLU6,
    nn.Dropout, nn.Identity,
)
#: How a layer can be divided: by its outputs, which stay divided for a `row` layer (column) or are put together
#: (gather), or by its inputs (row). Queries, keys and values of attention in one layer are divided by `heads`, and the
#: zoo's LSTM by `units`.
_STYLES = ("column", "gather", "row")


def plan_for(network: Network, size: int) -> dict[str, str]:
    """The plan of a network. Where it depends on how a user's model calls its chains, a trial on a copy shows that."""
    plan = plan_of(network.model, size)
    if network.from_zoo or plan == plan_of(network.model, size, {}):
        return plan
    return plan_of(network.model, size, covers_of(network.model, network.call_copy) or {})


def plan_of(model: nn.Module, size: int, covers: Covers | None = None) -> dict[str, str]:
    """How the layers of a model are divided over so many processes: its own `tensor_plan`, or what can be derived from
    chains of dense layers in `nn.Sequential`, and from the zoo's transformer and LSTM.

    With `covers`, only from chains inside of whose calls alone their layers are used: what lies between two layers of
    a chain is a part of the whole.
    """
    given = getattr(model, "tensor_plan", None)
    if given is not None:
        given = given() if callable(given) else given
        if not isinstance(given, Mapping):
            raise UsersCodeFailed(f"tensor_plan of the model: {given!r} is no dictionary of layers and styles; write "
                                  "it as {'first': 'column', 'second': 'row'}, for example")
        return dict(given)
    found: dict[str, str] = {}
    several = _used_several_times(model)
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if is_plain_chain(module):
            for first, second in _chained(module, size, several):
                if covers is None or module is model or _runs_whole(module, (first, second), covers):
                    found |= {prefix + first: "column", prefix + second: "row"}
        elif isinstance(module, Block):
            found |= {prefix + key: style for key, style in _of_block(module, size).items()}
    last = _last_dense(model)
    if last is not None and last not in found and _divides(dense := model.get_submodule(last), size):
        found |= {} if dense in several else {last: "gather"}
    return found | (_of_language_model(model, size, several) if isinstance(model, LanguageModel) else {})


def _of_language_model(model: LanguageModel, size: int, several: AbstractSet[nn.Module]) -> dict[str, str]:
    """Words of the embedding, which is used by calls alone, and units of the LSTM."""
    words = model.embedding.num_embeddings % size == 0 and model.embedding not in several
    found = {"embedding": "row"} if words else {}
    return found | ({"lstm": "units"} if size > 1 and model.lstm.hidden_size % size == 0 else {})


def _of_block(block: Block, size: int) -> dict[str, str]:
    """Heads of attention, and the wide layer, where they can be divided evenly."""
    found = {"qkv": "heads", "attended": "row"} if block.heads % size == 0 else {}
    return found | ({"expand": "column", "contract": "row"} if _divides(block.expand, size) else {})


def order_of_heads(heads: int, width: int, size: int) -> torch.Tensor:
    """The rows of a layer of queries, keys and values in the order in which every process has those of its heads."""
    rows = torch.arange(3 * width).view(3, size, heads // size, width // heads)
    return rows.transpose(0, 1).reshape(-1)


def _divides(layer: nn.Module, size: int) -> bool:
    return _is_plain_dense(layer) and layer.out_features % size == 0


def _is_plain_dense(layer: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether a layer computes what `nn.Linear` does, and from its own weights."""
    return (isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
            and not is_parametrized(layer) and not layer._forward_pre_hooks and not layer._forward_hooks)


def _used_several_times(model: nn.Module) -> set[nn.Module]:
    """Layers that are in several places, or whose weights are: what is right in one place may be wrong in another."""
    places = Counter(child for parent in model.modules() for child in parent._modules.values())
    owners = Counter(weight for module in model.modules() for weight in module.parameters(recurse=False))
    return {module for module in model.modules()
            if places[module] > 1 or any(owners[weight] > 1 for weight in module.parameters(recurse=False))}


def _runs_whole(chain: nn.Module, names: Sequence[str], covers: Covers) -> bool:
    """Whether the weights of these layers are used by calls of the layers alone, inside of calls of their chain."""
    return all({chain, layer} <= covers.get(weight, set())
               for layer in map(chain.get_submodule, names) for weight in layer.parameters())


def _chained(chain: nn.Module, size: int, several: AbstractSet[nn.Module]) -> Iterator[tuple[str, str]]:
    """Pairs of dense layers with nothing but elementwise layers between them."""
    first: str | None = None
    for name, layer in chain._modules.items():
        if _is_plain_dense(layer) and layer not in several:
            if first is not None:
                yield first, name
                first = None
            elif _divides(layer, size):
                first = name
        elif type(layer) not in _ELEMENTWISE:
            first = None


def _last_dense(model: nn.Module) -> str | None:
    """The last layer of a model, if it is dense: its outputs can be gathered."""
    if is_plain_chain(model):
        names = [name for name, layer in model._modules.items() if type(layer) not in _ELEMENTWISE]
        return names[-1] if names and isinstance(model.get_submodule(names[-1]), nn.Linear) else None
    softmax = dict(model.named_children()).get("softmax")  # of the zoo's language model
    return "softmax" if isinstance(softmax, nn.Linear) else None


def _style(style: str, layer: nn.Module) -> ParallelStyle:
    if style == "row":
        # Rows of an embedding are words, of which every process gets all.
        return RowwiseParallel(input_layouts=Replicate()) if isinstance(layer, nn.Embedding) else RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate()) if style == "gather" else ColwiseParallel()


class TensorLearner(DividedLearner):
    """One process's part of the dense layers, and everything else."""

    def _make_optimizer(self) -> Optimizer:
        assert isinstance(self._transport, ProcessGroup)
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
        found = [None] * len(self._trained) if loss is None else super()._gradients(loss)
        parts = [torch.zeros_like(local(like)) if gradient is None else local(gradient, like)
                 for gradient, like in zip(found, self._trained, strict=True)]
        present = parts[0].new_tensor([float(gradient is not None) for gradient in found])
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


def checked_plan(name: str, model: nn.Module, plan: dict[str, str], size: int) -> dict[str, str]:
    """The plan, or a refusal: of a model that cannot be divided, or of a plan that does not fit its model."""
    layers: dict[str, Any] = dict(model.named_modules())
    for key, style in plan.items():
        layer, around = layers.get(key), layers.get(key.rpartition(".")[0])
        if style == "units" and isinstance(model, LanguageModel):
            continue  # derived
        known = style in _STYLES or (style == "heads" and isinstance(around, Block))
        if not known or not isinstance(layer, nn.Linear | nn.Embedding):
            raise UsersCodeFailed(
                f"tensor_plan of model {name!r}: {key!r}: {style!r} is none of {', '.join(_STYLES)} for a layer "
                "that is nn.Linear or nn.Embedding"
            )
        width = _width(layer, style)
        if width % size:
            raise BadRequest(
                f"--workers {size}: layer {key!r} of {name!r} has a width of {width}, which they cannot divide "
                "evenly; choose another number of workers"
            )
    if not plan:
        raise BadRequest(
            f"--strategy tensor: model {name!r} has no dense layers that {size} workers can divide evenly; choose "
            "another number of workers or another strategy, or give the model a tensor_plan"
        )
    return plan


def _width(layer: nn.Linear | nn.Embedding, style: str) -> int:
    """The numbers of a layer that are divided."""
    if isinstance(layer, nn.Linear):
        return layer.in_features if style == "row" else layer.out_features
    return layer.num_embeddings if style == "row" else layer.embedding_dim
