"""The batches of a task for a model whose inputs and outputs are in different processes, as in a pipeline: what goes
into the first stage, and the loss and counts of what comes out of the last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from velodrome.engines.torch.network import Network
from velodrome.engines.torch.objectives import LabelObjective, ObjectiveModule
from velodrome.engines.torch.tasks.arrays import ArrayTask, Tally
from velodrome.engines.torch.tasks.base import TorchTask
from velodrome.engines.torch.tasks.classification import ClassificationTask
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.tasks.counts import Batch, Counts

Count = Callable[[], None]


class Passage(ABC):
    """One step after another: `enter` it, feed `inputs`, take the `loss` of its parts, count those that were trained
    on, and at last ask for the `counts`."""

    #: Whether losses are divided by the number of examples; else by `total`, which is known after the last part.
    by_examples = True

    @abstractmethod
    def enter(self, step: int) -> None: ...

    #: The examples of the step in this process, and over all processes.
    examples: int
    batch: int

    @property
    @abstractmethod
    def inputs(self) -> torch.Tensor:
        """What the model takes for the examples of the step."""

    @property
    def total(self) -> float:
        """What the losses of the step that were counted are a sum over."""
        return self.examples

    @abstractmethod
    def loss(self, outputs: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, Count]:
        """The summed loss of these outputs, which belong to the examples at these places of the step, and what counts
        them: PyTorch also asks for losses of no data, to find out shapes."""

    @abstractmethod
    def counts(self) -> Counts:
        """Of every part that was counted since the last call."""


class ImagePassage(Passage):
    """Images with a label each."""

    def __init__(self, task: ClassificationTask, network: Network) -> None:
        self._task, self._network = task, network
        self._total, self._losses, self._right = 0, list[torch.Tensor](), list[torch.Tensor]()

    def enter(self, step: int) -> None:
        self._step, self._labels = step, self._task.labels_of(step)
        self.examples, self.batch = len(self._labels), self._task.batch_of(step)

    @property
    def inputs(self) -> torch.Tensor:
        return self._task.images_of(self._step)

    def loss(self, outputs: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, Count]:
        labels = self._labels[places]
        loss = self._network.loss(outputs, labels)

        def count() -> None:
            self._total += len(labels)
            self._losses.append(loss.detach())
            self._right.append((outputs.detach().argmax(1) == labels).sum())

        return loss, count

    def counts(self) -> Counts:
        loss, right = (float(torch.stack(each).sum(dtype=torch.float64)) if each else 0.0
                       for each in (self._losses, self._right))
        found = Counts(self._total, loss, {"correct": round(right)})
        self._total, self._losses, self._right = 0, [], []
        return found


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


class ArrayPassage(Passage):
    """Named arrays with any objective, one that the user wrote included."""

    def __init__(self, task: ArrayTask, network: Network, names: tuple[str, ...], task_name: str) -> None:
        assert isinstance(network.adapter, ObjectiveModule)
        self._task, self._objective, self._names = task, network.adapter.objective, names
        self._objective.minimum_batch = 1  # parts are filled before they enter
        self.by_examples = self._objective.by_examples
        self._computed, self._tally, self._total = _Computed(task_name), Tally(self._objective), 0.0

    def enter(self, step: int) -> None:
        self._rows, self._total = self._task.rows_of(step), 0.0
        self.examples, self.batch = len(self._rows), self._task.batch_of(step)

    @property
    def inputs(self) -> torch.Tensor:
        found: torch.Tensor = self._rows.x
        return found

    @property
    def total(self) -> float:
        return self._total

    def loss(self, outputs: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, Count]:
        part = Batch({name: values[places] for name, values in self._rows.inputs.items()},
                     {name: values[places] for name, values in self._rows.targets.items()})
        self._computed.outputs = outputs
        loss = self._objective.loss(cast(nn.Module, self._computed), part)
        objective, found = self._objective, (self._objective.outputs, self._objective.total)

        def count() -> None:
            objective.outputs, objective.total = found
            self._total += objective.total
            self._tally.add(loss.detach(), part)

        return loss, count

    def counts(self) -> Counts:
        found, self._tally = self._tally.counts(self._names), Tally(self._objective)
        return found


def refuse_what_cannot_pass(job: Job, data: Any, network: Network) -> None:
    """Refuse a model that does not pass a batch through a chain of layers as it is, or data of which it is no batch."""
    adapter = network.adapter
    if isinstance(adapter, ObjectiveModule):
        if len(data.inputs) > 1:
            raise BadRequest(f"--strategy pipeline: the first stage takes one input, and {data.name!r} has "
                             f"{', '.join(one.name for one in data.inputs)}; choose another strategy")
        plain = adapter.model is network.model and job.dtype != "bfloat16"
        objective = adapter.objective
        plain = plain and not (isinstance(objective, LabelObjective) and objective.takes_sigmoid)
    elif data.kind == "text":
        raise BadRequest(f"--strategy pipeline: {job.model!r} is a language model, whose layers do not follow one "
                         "another in one chain; choose another strategy")
    else:
        plain = adapter is None
    if not plain:
        raise BadRequest(f"--strategy pipeline: model {job.model!r} must return logits, and compute in its own "
                         "format (no --dtype bfloat16); choose another strategy")


def refuse_small_parts(job: Job, network: Network, examples: int) -> None:
    """Refuse micro-batches of so many examples if the model cannot be trained on them."""
    if examples < network.minimum_batch:
        raise BadRequest(
            f"--micro-batches {job.micro_batches}: model {job.model!r} trains on {network.minimum_batch} examples or "
            f"more at a time, and a micro-batch has {examples}; use fewer micro-batches or a larger batch"
        )


def passage_of(task: TorchTask, network: Network, counted: tuple[str, ...], task_name: str) -> Passage:
    """That of a task whose model `refuse_what_cannot_pass` has let through."""
    if isinstance(task, ArrayTask):
        return ArrayPassage(task, network, counted, task_name)
    assert isinstance(task, ClassificationTask)
    return ImagePassage(task, network)
