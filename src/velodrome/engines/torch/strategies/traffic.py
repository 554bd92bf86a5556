"""What `pipeline` and `tensor` would do with a model that was tried in one process: what a worker would send per step,
or why they would refuse it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from velodrome.catalog.engines.torch import Mesh
from velodrome.catalog.exchange import between_groups
from velodrome.engines.torch.feed import dtype_of
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.strategies.pipeline_batches import refuse_what_cannot_pass
from velodrome.engines.torch.strategies.pipeline_stages import (
    chain_of,
    cuts_of,
    given_stages,
    given_starts,
    groups_of,
    owners_of,
)
from velodrome.engines.torch.strategies.tensor import checked_plan, plan_for
from velodrome.errors import VelodromeError
from velodrome.job.job import Job

Rows = Sequence[Mapping[str, Any]]


def divisions(
    job: Job, data: Any, network: Network, workers: int, mesh: Mesh | None, layers: Rows
) -> list[dict[str, Any]]:
    """The fields of `events.models.Division`, by the layers of a step as `inspection` found them."""
    found = []
    for strategy, divide in (("pipeline", _pipeline), ("tensor", _tensor)):
        groups = mesh.groups if mesh is not None and mesh.strategy == strategy else 1
        try:
            sent, formula = divide(job, data, network, workers // groups, layers)
            if groups > 1:
                sent, formula = _in_groups(job, network, workers // groups, groups, sent, formula)
            found.append({"strategy": strategy, "workers": workers, "bytes": sent, "formula": formula})
        except VelodromeError as error:
            found.append({"strategy": strategy, "workers": workers, "refused": str(error)})
    return found


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
