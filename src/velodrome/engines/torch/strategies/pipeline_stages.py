"""What `pipeline` divides: a chain of layers, cut where every stage takes about the same time, and the batches that
pass through the stages, whose inputs and outputs are in different processes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch import nn

from velodrome.catalog.engines.torch import MICRO_BATCHES
from velodrome.engines.torch.feed import Feed
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.objectives import Tally
from velodrome.errors import BadRequest, UsersCodeFailed
from velodrome.job.job import Job
from velodrome.tasks.base import Batch, Counts

Count = Callable[[], None]

class _Contiguous(torch.autograd.Function):
    """What it gets, with gradients that lie in memory as gloo sends them."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


class Stage(nn.Sequential):
    """The layers of one process."""

    def forget_first_call(self) -> None:
        """Undo what the next call does to statistics: PyTorch makes one with no data, to find out shapes."""
        kept = [buffer.detach().clone() for buffer in self.buffers()]
        calls = 0

        def restore(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                handle.remove()
                with torch.no_grad():
                    for buffer, value in zip(self.buffers(), kept, strict=True):
                        buffer.copy_(value)

        handle = self.register_forward_pre_hook(restore)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = super().forward(_Contiguous.apply(inputs) if inputs.requires_grad else inputs)
        return outputs.contiguous()


def _refused(reason: str, fix: str = "") -> BadRequest:
    """The refusal of what cannot pass through a pipeline; `fix` is what helps besides another strategy."""
    return BadRequest(f"--strategy pipeline: {reason}; {f'{fix}, or ' if fix else ''}choose another strategy")


def chain_of(name: str, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a model that are called one after another, with their names, or `BadRequest`.

    A layer without tensors, such as an activation, may be in it several times. Tensors of the model itself belong to no
    layer: they stay as they are.
    """
    if not isinstance(model, nn.Sequential):
        raise _refused(f"model {name!r} is not an nn.Sequential", "build it as one")
    if not is_plain_chain(model) or model._forward_hooks or model._forward_pre_hooks:
        raise _refused(f"model {name!r} has a forward or hooks of its own, which no stage would call",
                       "make them layers of its nn.Sequential")
    layers = [(key, layer) for key, layer in model._modules.items() if layer is not None]
    owners: dict[int, str] = {}
    for key, layer in layers:
        for tensor in {id(each) for each in (*layer.parameters(), *layer.buffers())}:
            if (other := owners.setdefault(tensor, key)) != key:
                raise _refused(f"layers {other!r} and {key!r} of model {name!r} share weights, but each of their "
                               "stages would have its own copy")
    for key, tensor in (*model._parameters.items(), *model._buffers.items()):
        if id(tensor) in owners:
            raise _refused(f"{key!r} of model {name!r} is a tensor of layer {owners[id(tensor)]!r} as well, which only "
                           "one stage has", "remove it from the nn.Sequential itself")
    return layers


def is_plain_chain(module: nn.Module) -> bool:
    """Whether a module calls its layers one after another and does nothing else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def groups_of(name: str, layers: Sequence[tuple[str, nn.Module]], stages: int) -> list[list[int]]:
    """Layers that are never separated, by their numbers: each group has weights to train."""
    groups: list[list[int]] = []
    before: list[int] = []
    for number, (_, layer) in enumerate(layers):
        if any(parameter.requires_grad for parameter in layer.parameters()):
            groups.append([*before, number])
            before = []
        elif groups:
            groups[-1].append(number)
        else:
            before.append(number)
    if len(groups) < stages:
        raise BadRequest(
            f"--workers {stages}: every stage of a pipeline needs a layer with weights, but model {name!r} has "
            f"{len(groups)}; use fewer workers"
        )
    return groups


def costs_of(groups: Sequence[Sequence[nn.Module]], inputs: torch.Tensor) -> list[float]:
    """What each group of layers costs compared to the others: the seconds that it takes or, where that cannot be
    measured, its number of weights."""
    try:
        return seconds_of(groups, inputs)
    except Exception:  # a layer that cannot be copied, or that takes more than one tensor
        return [float(sum(weight.numel() for layer in group for weight in layer.parameters())) for group in groups]


def seconds_of(groups: Sequence[Sequence[nn.Module]], inputs: torch.Tensor, repeat: int = 3) -> list[float]:
    """Seconds of a forward and a backward pass of each group of layers, the shortest of a few; the layers stay as they
    are. Within a group, they may pass on anything."""
    seconds = []
    with torch.random.fork_rng(devices=[]):
        for group in groups:
            tried, best = copy.deepcopy(nn.Sequential(*group)).train(), float("inf")
            for _ in range(repeat):
                given = inputs.detach().clone().requires_grad_(inputs.is_floating_point())
                began = time.perf_counter()
                outputs = tried(given)
                if outputs.requires_grad:
                    outputs.backward(torch.ones_like(outputs))
                best = min(best, time.perf_counter() - began)
            seconds.append(best)
            inputs = outputs.detach()
    return seconds


def cuts_of(seconds: Sequence[float], stages: int) -> list[int]:
    """Where to cut a row of groups into stages so that the slowest is as fast as possible: the first group of
    each stage, and the number of groups."""
    total = [0.0, *accumulate(seconds)]
    count = len(seconds)
    #: For each number of groups, the slowest stage and the cuts of the best division into the stages so far.
    best: list[tuple[float, list[int]]] = [(total[end], [0, end]) for end in range(count + 1)]
    for stage in range(2, stages + 1):
        best = [
            min(
                ((max(best[cut][0], total[end] - total[cut]), [*best[cut][1], end]) for cut in range(stage - 1, end)),
                default=(float("inf"), []),
            )
            for end in range(count + 1)
        ]
    return best[count][1]


def owners_of(groups: Sequence[Sequence[int]], cuts: Sequence[int]) -> list[int]:
    """The stage of every layer."""
    stages = [stage for stage, (low, high) in enumerate(pairwise(cuts)) for _ in range(low, high)]
    owner = {number: stage for group, stage in zip(groups, stages, strict=True) for number in group}
    return [owner[number] for number in range(len(owner))]


def given_starts(name: str, model: nn.Module) -> list[str] | None:
    """The `stage_starts` of a model: the names of the layers that begin the second and later stages."""
    given = getattr(model, "stage_starts", None)
    if given is not None and not isinstance(given, list | tuple):
        raise UsersCodeFailed(
            f"stage_starts of model {name!r}: {given!r} is not a list of layers; write them as ['3'], for example"
        )
    return None if given is None else [str(each) for each in given]


def given_stages(name: str, layers: Sequence[tuple[str, nn.Module]], starts: Sequence[str], stages: int) -> list[int]:
    """The stage of every layer by the names of the layers that begin the second and later ones: the `stage_starts` of
    a model."""
    names = [each for each, _ in layers]
    places = [names.index(start) for start in starts if start in names]
    if len(places) != stages - 1 or len(starts) != stages - 1 or places != sorted({*places} - {0}):
        raise BadRequest(
            f"--workers {stages}: stage_starts of model {name!r} are {list(starts)}, and must be {stages - 1} of its "
            f"layers {', '.join(names[1:])}, in this order; use {len(starts) + 1} workers, or change them"
        )
    owners = [sum(place <= number for place in places) for number in range(len(names))]
    for stage in range(stages):
        groups_of(name, [layer for layer, owner in zip(layers, owners, strict=True) if owner == stage], 1)
    return owners


# -- batches


class _Computed:
    """In place of the model for a loss: returns what the last stage has computed, once."""

    training = True

    def __init__(self, task: str) -> None:
        self._task, self._hooks = task, list[Any]()
        self.outputs: torch.Tensor | None = None

    def __call__(self, inputs: Any) -> torch.Tensor:
        outputs, self.outputs = self.outputs, None
        if outputs is None:
            raise self._refuses("calls the model more than once for a batch, which passes through the stages once")
        for hook in self._hooks:
            hook(self, inputs, outputs)
        return outputs

    def register_forward_hook(self, hook: Any) -> Any:
        self._hooks = [hook]
        return self

    def remove(self) -> None:
        self._hooks = []

    def __getattr__(self, name: str) -> Any:
        raise self._refuses(f"uses 'model.{name}', and no process has the whole model")

    def _refuses(self, reason: str) -> BadRequest:
        return _refused(f"the loss of task {self._task!r} {reason}")


class PassingBatch:
    """The batch that passes through the stages: `enter` a step, feed `inputs`, take the `loss` of its parts, count
    those that were trained on, and at last ask for the `counts`."""

    #: The examples of the step in this process, and over all processes.
    examples: int
    batch: float
    #: What the losses of the step that were counted are a sum over.
    total: float

    def __init__(self, feed: Feed, objective: Any, names: tuple[str, ...], task: str) -> None:
        self._feed, self._objective, self._names = feed, objective, names
        objective.minimum_batch = 1  # parts are filled before they enter
        #: Whether losses are divided by the number of examples; else by `total`, which is known after the last part.
        self.by_examples: bool = objective.by_examples
        self._computed, self._tally = _Computed(task), Tally(objective)

    def enter(self, step: int) -> None:
        ((rows, self.batch),) = self._feed.steps(step, step + 1)
        assert rows is not None, "every process has all examples"
        self._rows, self.examples, self.total = rows, len(rows), 0.0

    @property
    def inputs(self) -> torch.Tensor:
        """What the model takes for the examples of the step."""
        inputs: torch.Tensor = self._rows.x
        return inputs

    def loss(self, outputs: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, Count]:
        """The summed loss of these outputs, which belong to the examples at these places of the step, and what counts
        them: PyTorch also asks for losses of no data, to find out shapes."""
        part = Batch({name: values[places] for name, values in self._rows.inputs.items()},
                     {name: values[places] for name, values in self._rows.targets.items()})
        self._computed.outputs = outputs
        objective = self._objective
        loss = objective.loss(cast(nn.Module, self._computed), part)
        counted = objective.outputs, objective.total

        def count() -> None:
            objective.outputs, objective.total = counted
            self.total += objective.total
            self._tally.add(loss.detach(), part)

        return loss, count

    def counts(self) -> Counts:
        """Of every part that was counted since the last call."""
        counts, self._tally = self._tally.counts(self._names), Tally(self._objective)
        return counts


def refuse_what_cannot_pass(job: Job, data: Any, network: Network) -> None:
    """Refuse a model that does not pass a batch through a chain of layers as it is, or data of which it is no batch."""
    if data.kind == "text":
        raise _refused(f"{job.model!r} is a language model, whose layers do not follow one another in one chain")
    if len(data.inputs) > 1:
        names = ", ".join(field.name for field in data.inputs)
        raise _refused(f"the first stage takes one input, and {data.name!r} has {names}")
    objective = network.objective
    if network.module.model is not network.model or job.dtype == "bfloat16" or objective.takes_sigmoid:
        raise _refused(f"model {job.model!r} must return logits, and compute in its own format (no --dtype bfloat16)")


def refuse_small_parts(job: Job, minimum: int, examples: int) -> None:
    """Refuse micro-batches of this many examples if the model cannot be trained on them."""
    if examples < minimum:
        raise BadRequest(
            f"--micro-batches {MICRO_BATCHES.of(job)}: model {job.model!r} trains on {minimum} examples or "
            f"more at a time, but a micro-batch has {examples}; use fewer micro-batches or a larger batch"
        )
