"""What a batch is trained by: its summed loss, and what is counted of the outputs.

Metrics of the user's own task are counted before the backward pass, so that no batch is kept through the optimizer's
step. Where a trial saw that counting changes the outputs or the batch in place, they are counted after it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from velodrome.engines.torch.calling import scores
from velodrome.engines.torch.feed import repeated
from velodrome.tasks.base import Batch, Counts
from velodrome.tasks.correctness_bits import MAX_CONFUSION_CLASSES, Evaluated
from velodrome.tasks.schedule import Indices

#: Outputs up to this many numbers wait to be counted together, which takes less time than counting every step.
_PENDING_NUMBERS = 1 << 18


class Objective(ABC):
    """The loss of a task in PyTorch's tensors. After `loss`, `outputs` and `total` are those of its batch."""

    #: Whether `total` is always the number of examples, so that the batch of all processes is known beforehand.
    by_examples = True
    #: The smallest batch that the model trains on; smaller ones are filled by repeating their examples.
    minimum_batch = 1
    #: The part of a label that training spreads over all classes.
    smoothing = 0.0
    #: Whether counting changes outputs or the batch in place, which the backward pass may need as they were.
    changes_tensors = False
    #: Whether `count` needs the outputs and the only target alone, so that several batches can be counted at once.
    counts_outputs = False
    #: Whether `loss` adds up the values of a batch, where it has one per example.
    adds_up = True
    #: Of a task in which every answer is one of several classes.
    classes: int | None = None
    #: Whether it looks into the model for what goes into its sigmoid.
    takes_sigmoid = False
    #: Numbers per example that an evaluation needs from all processes; None if it needs none.
    score_width: int | None = None

    def __init__(self) -> None:
        self.outputs: Any = None
        #: What the summed loss is a sum over.
        self.total: float = 0

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The sum of the losses of a batch, with its history."""

    def results(self, model: nn.Module, batch: Batch) -> list[Any]:
        """The loss of a batch and, where a task of the user's own counts something, that."""
        return [self.loss(model, batch)]

    @abstractmethod
    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        """Sums over the batch of the last `loss`, in the order of the task's `counted`."""

    def try_counting(self, batch: Batch) -> dict[str, torch.Tensor | float]:
        """What a task of the user's own counts of a first batch; notices what it changes in place."""
        return {}

    def scores(self, batch: Batch) -> torch.Tensor | None:
        """A row of `score_width` numbers per example."""
        return None

    def right(self, batch: Batch) -> torch.Tensor | None:
        """Which examples of the batch were answered correctly; None where no answer is right or wrong."""
        return None


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Losses are computed in float32 at least."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class OutputObjective(Objective):
    """A loss of one tensor that the model returns."""

    counts_outputs = True

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        """`shape` is that of the outputs for one example; others with as many numbers are reshaped."""
        super().__init__()
        self._name, self.shape = name, shape

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        size = len(batch)
        whole = size >= self.minimum_batch or not model.training
        outputs = self._called(model, batch.x if whole else repeated(batch, self.minimum_batch))
        if not whole:
            outputs = outputs[:size]
        self.outputs, self.total, self._training = outputs.detach(), size, model.training
        return self._loss(outputs, batch.y)

    def _called(self, model: nn.Module, inputs: Any) -> torch.Tensor:
        return self._shaped(scores(model, inputs))

    def _shaped(self, outputs: Any) -> torch.Tensor:
        if isinstance(outputs, torch.Tensor):
            outputs = at_least_float32(outputs)
            if outputs.shape[1:] == self.shape:
                return outputs
        return outputs.reshape(len(outputs), *self.shape)

    @abstractmethod
    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor: ...


class ObjectiveModule(nn.Module):
    """Model and objective as one module that returns the summed loss: what strategies call and wrap.

    The user's loss runs inside, so it may call the model more than once, or parts of it.
    """

    def __init__(self, model: nn.Module, objective: Objective, *, autocast: bool = False) -> None:
        """With `autocast`, layers compute in bfloat16 where that is safe."""
        super().__init__()
        self.model = model
        self.objective = objective
        self._autocast = autocast

    def forward(self, inputs: dict[str, Any], targets: dict[str, torch.Tensor]) -> torch.Tensor:
        if not self._autocast:
            return self.objective.loss(self.model, Batch(inputs, targets))
        device = next(self.model.parameters()).device
        with torch.autocast(device.type, torch.bfloat16):
            return self.objective.loss(self.model, Batch(inputs, targets)).float()


# -- counting


class Tally:
    """Sums over batches, of which nothing is read back from the device before the end."""

    def __init__(self, objective: Objective, part: str = "train") -> None:
        self._objective: Any = objective
        self._part, self._total = part, 0.0
        self._losses: list[torch.Tensor] = []
        self._sums: list[Sequence[torch.Tensor | float]] = []
        self._outputs: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []
        self._pending = 0

    def add(self, loss: torch.Tensor, batch: Batch) -> None:
        """Count the batch of the objective's last loss."""
        self._total += self._objective.total
        self._losses.append(loss)
        if not self._objective.counts_outputs:
            self._sums.append(self._objective.count(batch, self._part))
            return
        self._outputs.append(self._objective.outputs)
        self._targets.append(batch.y)
        self._pending += self._objective.outputs.numel()
        if self._pending > _PENDING_NUMBERS:
            self._flush()

    def _flush(self) -> None:
        if not self._outputs:
            return
        self._objective.outputs = torch.cat(self._outputs)
        self._sums.append(self._objective.count(Batch({}, {"y": torch.cat(self._targets)}), self._part))
        self._outputs, self._targets, self._pending = [], [], 0

    def counts(self, names: Sequence[str]) -> Counts:
        self._flush()
        join = torch.cat if self._losses and self._losses[0].ndim else torch.stack
        loss = float(join(self._losses).sum(dtype=torch.float64)) if self._losses else 0.0
        sums = [_added(values) for values in zip(*self._sums, strict=True)] if self._sums else [0.0] * len(names)
        own = {name: int(value) if value.is_integer() else value for name, value in zip(names, sums, strict=True)}
        return Counts(round(self._total), loss, own)


def _added(values: Sequence[torch.Tensor | float]) -> float:
    """The sum of numbers, most of which are on the device."""
    tensors = [each.reshape(()) if each.ndim else each for each in values if isinstance(each, torch.Tensor)]
    plain = math.fsum(each for each in values if not isinstance(each, torch.Tensor))
    return plain + (float(torch.stack(tensors).sum(dtype=torch.float64)) if tensors else 0.0)


class Answers:
    """What an evaluation knows of single examples: which are right, their scores, and a confusion matrix."""

    def __init__(self, objective: Objective, examples: int, mine: Indices) -> None:
        self._objective, self._examples, self._mine = objective, examples, mine
        self._right: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []
        self._predicted: list[torch.Tensor] = []
        self._labels: list[torch.Tensor] = []

    def add(self, batch: Batch) -> None:
        """Note what the objective's last loss knows of its examples."""
        right, scores = self._objective.right(batch), self._objective.scores(batch)
        if right is not None:
            self._right.append(right)
        if scores is not None:
            self._scores.append(scores)
        if self._confuses:
            self._predicted.append(torch.argmax(self._objective.outputs, 1))
            self._labels.append(batch.y)

    @property
    def _confuses(self) -> bool:
        classes = self._objective.classes
        return classes is not None and classes <= MAX_CONFUSION_CLASSES

    def evaluated(self, counts: Counts) -> Evaluated:
        """The counts of this process's share with what is known of its examples."""
        confusion = answers = scores = None
        classes, width = self._objective.classes, self._objective.score_width
        if classes is not None and self._confuses:
            confusion = np.zeros(classes**2)
            if self._labels:
                pairs = torch.cat(self._labels) * classes + torch.cat(self._predicted)
                confusion = torch.bincount(pairs, minlength=classes**2).double().cpu().numpy()
        if classes is not None or width is not None:
            answers = np.zeros(self._examples, np.bool_)
            if self._right:
                answers[self._mine] = torch.cat(self._right).cpu().numpy()
        if width is not None:
            table = np.zeros((self._examples, width))
            if self._scores:
                table[self._mine] = torch.cat(self._scores).double().cpu().numpy()
            scores = table.ravel()
        return Evaluated(counts, confusion, answers, scores)
