"""How `tensor` divides the layers of a model; and what a worker would send per step under it and under `pipeline`, of a
model that was tried in one process, or why they would refuse it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeGuard

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from velodrome.catalog.engines.torch import Mesh
from velodrome.catalog.exchange import between_groups
from velodrome.engines.torch.feed import dtype_of
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.strategies.pipeline_stages import (
    chain_of,
    cuts_of,
    given_stages,
    given_starts,
    groups_of,
    is_plain_chain,
    owners_of,
    refuse_what_cannot_pass,
)
from velodrome.engines.torch.strategies.sharding import Covers, covers_of
from velodrome.errors import BadRequest, UsersCodeFailed, VelodromeError
from velodrome.job.job import Job
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
    """How the layers of a model are divided over `size` processes: its own `tensor_plan`, or what can be derived from
    chains of dense layers in `nn.Sequential`, and from the zoo's transformer and LSTM.

    With `covers`, only from chains inside of whose calls alone their layers are used: what lies between two layers of
    a chain is a part of the whole.
    """
    given = getattr(model, "tensor_plan", None)
    if given is not None:
        given = given() if callable(given) else given
        if not isinstance(given, Mapping):
            raise UsersCodeFailed(f"tensor_plan of the model: {given!r} is not a dictionary of layers and styles; "
                                  "write it as {'first': 'column', 'second': 'row'}, for example")
        return dict(given)
    plan: dict[str, str] = {}
    several = _used_several_times(model)
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if is_plain_chain(module):
            for first, second in _chained(module, size, several):
                if covers is None or module is model or _runs_whole(module, (first, second), covers):
                    plan |= {prefix + first: "column", prefix + second: "row"}
        elif isinstance(module, Block):
            plan |= {prefix + key: style for key, style in _of_block(module, size).items()}
    last = _last_dense(model)
    if last is not None and last not in plan and _divides(dense := model.get_submodule(last), size):
        plan |= {} if dense in several else {last: "gather"}
    return plan | (_of_language_model(model, size, several) if isinstance(model, LanguageModel) else {})


def _of_language_model(model: LanguageModel, size: int, several: AbstractSet[nn.Module]) -> dict[str, str]:
    """Words of the embedding, which is used by calls alone, and units of the LSTM."""
    words = model.embedding.num_embeddings % size == 0 and model.embedding not in several
    plan = {"embedding": "row"} if words else {}
    return plan | ({"lstm": "units"} if size > 1 and model.lstm.hidden_size % size == 0 else {})


def _of_block(block: Block, size: int) -> dict[str, str]:
    """Heads of attention, and the wide layer, where they can be divided evenly."""
    plan = {"qkv": "heads", "attended": "row"} if block.heads % size == 0 else {}
    return plan | ({"expand": "column", "contract": "row"} if _divides(block.expand, size) else {})


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


# -- what a worker would send

Rows = Sequence[Mapping[str, Any]]


def divisions(
    job: Job, data: Any, network: Network, workers: int, mesh: Mesh | None, layers: Rows
) -> list[dict[str, Any]]:
    """The fields of `events.models.Division`, by the layers of a step as `inspection` found them."""
    divided = []
    for strategy, divide in (("pipeline", _pipeline), ("tensor", _tensor)):
        groups = mesh.groups if mesh is not None and mesh.strategy == strategy else 1
        try:
            sent, formula = divide(job, data, network, workers // groups, layers)
            if groups > 1:
                sent, formula = _in_groups(job, network, workers // groups, groups, sent, formula)
            divided.append({"strategy": strategy, "workers": workers, "bytes": sent, "formula": formula})
        except VelodromeError as error:
            divided.append({"strategy": strategy, "workers": workers, "refused": str(error)})
    return divided


def _pipeline(job: Job, data: Any, network: Network, workers: int, layers: Rows) -> tuple[int, str]:
    refuse_what_cannot_pass(job, data, network)
    chain = chain_of(job.model, network.model)
    known = {layer: name for name, layer in network.model.named_children()}  # one that is called twice has one name
    given, groups = given_starts(job.model, network.model), groups_of(job.model, chain, workers)
    if given is not None:
        owners = given_stages(job.model, chain, given, workers)
    else:
        seconds = [sum(row.get("seconds", 0.0) for row in _within(known[layer], layers)) for _, layer in chain]
        owners = owners_of(groups, cuts_of([sum(seconds[each] for each in group) for group in groups], workers))
    last = {owner: name for (name, layer), owner in zip(chain, owners, strict=True) if known[layer] == name}
    sizes = [_size(_within(last[stage], layers)[-1], job) for stage in range(workers - 1)]
    # A stage sends what it computes to the next one, and the gradient of what it got to the one before.
    sent = max((left + right for left, right in zip([0, *sizes], [*sizes, 0], strict=True)), default=0)
    cuts = ", ".join(last[stage] for stage in range(workers - 1))
    return sent, f"outputs of layer {cuts} sent to the next stage, and their gradients back" if cuts else "one stage"


def _within(name: str, layers: Rows) -> list[Mapping[str, Any]]:
    """The rows of a layer and of those inside it; its own comes last."""
    inside = [row for row in layers if row["name"].startswith(f"{name}.")]
    return inside + [row for row in layers if row["name"] == name]


def _size(row: Mapping[str, Any], job: Job) -> int:
    return math.prod(row.get("shape") or [0]) * dtype_of(job).itemsize


def _in_groups(
    job: Job, network: Network, members: int, groups: int, sent: int, formula: str
) -> tuple[int, str]:
    """The same for one of several groups of `tensor`, which divide the batch and sum their gradients."""
    plan = plan_for(network, members)
    part = 0.0
    for name, parameter in network.model.named_parameters():
        layer, _, kind = name.rpartition(".")
        divided = layer in plan and not (plan[layer] == "row" and kind == "bias")
        part += parameter.nbytes / (members if divided else 1) if parameter.requires_grad else 0
    return (round(sent / groups + between_groups(part, groups)),
            f"{formula}; gradients of a worker's part, summed over {groups} groups")


def _tensor(job: Job, data: Any, network: Network, workers: int, layers: Rows) -> tuple[int, str]:
    plan = checked_plan(job.model, network.model, plan_for(network, workers), workers)
    first = next((row["name"] for row in layers if row.get("parameters")), None)
    whole = 0.0
    for row in layers:
        style, layer = plan.get(row["name"]), dict(network.model.named_modules()).get(row["name"])
        if style is None or layer is None:
            continue
        outputs = _size(row, job)
        if isinstance(layer, nn.LSTM):
            # Of each layer: what the units put out after every word, and their state after the last; gradients of the
            # inputs, and of what the gates take from the word before, are parts of sums.
            steps = (row.get("shape") or [1])[0]
            whole += layer.num_layers * (steps + 1 + 2 * steps + 2 * (steps - 1)) / steps * outputs
            continue
        if style == "row":
            whole += 2 * outputs  # parts of a sum, added up by a ring
            continue
        if style == "gather":
            whole += outputs
        if isinstance(layer, nn.Linear) and row["name"] != first:  # gradients of its inputs are parts of a sum
            whole += 2 * outputs * layer.in_features / layer.out_features
    named = ", ".join(f"{name} ({style})" for name, style in plan.items())
    return round((workers - 1) / workers * whole), f"outputs of divided layers, and gradients of their inputs: {named}"
