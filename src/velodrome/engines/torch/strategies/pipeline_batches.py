"""The batches of a task for a model whose inputs and outputs are in different processes, as in a pipeline: what goes
into the first stage, and the loss and counts of what comes out of the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from velodrome.engines.torch.feed import Feed
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.objectives import Tally
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.tasks.counts import Batch, Counts

Count = Callable[[], None]


class _Computed:
    """In place of the model for a loss: returns what the last stage has computed, once."""

    training = True

    def __init__(self, task: str) -> None:
        self._task, self._hooks = task, list[Any]()
        self.outputs: torch.Tensor | None = None

    def __call__(self, inputs: Any) -> torch.Tensor:
        outputs, self.outputs = self.outputs, None
        if outputs is None:
            raise self._refused("calls the model more than once for a batch, which passes through the stages once")
        for hook in self._hooks:
            hook(self, inputs, outputs)
        return outputs

    def register_forward_hook(self, hook: Any) -> Any:
        self._hooks = [hook]
        return self

    def remove(self) -> None:
        self._hooks = []

    def __getattr__(self, name: str) -> Any:
        raise self._refused(f"uses 'model.{name}', and no process has the whole model")

    def _refused(self, reason: str) -> BadRequest:
        return BadRequest(f"--strategy pipeline: the loss of task {self._task!r} {reason}; choose another strategy")


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
        found: torch.Tensor = self._rows.x
        return found

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
        found, self._tally = self._tally.counts(self._names), Tally(self._objective)
        return found


def refuse_what_cannot_pass(job: Job, data: Any, network: Network) -> None:
    """Refuse a model that does not pass a batch through a chain of layers as it is, or data of which it is no batch."""
    if data.kind == "text":
        raise BadRequest(f"--strategy pipeline: {job.model!r} is a language model, whose layers do not follow one "
                         "another in one chain; choose another strategy")
    if len(data.inputs) > 1:
        raise BadRequest(f"--strategy pipeline: the first stage takes one input, and {data.name!r} has "
                         f"{', '.join(one.name for one in data.inputs)}; choose another strategy")
    objective = network.objective
    if network.module.model is not network.model or job.dtype == "bfloat16" or objective.takes_sigmoid:
        raise BadRequest(f"--strategy pipeline: model {job.model!r} must return logits, and compute in its own "
                         "format (no --dtype bfloat16); choose another strategy")


def refuse_small_parts(job: Job, minimum: int, examples: int) -> None:
    """Refuse micro-batches of so many examples if the model cannot be trained on them."""
    if examples < minimum:
        raise BadRequest(
            f"--micro-batches {job.micro_batches}: model {job.model!r} trains on {minimum} examples or "
            f"more at a time, and a micro-batch has {examples}; use fewer micro-batches or a larger batch"
        )
