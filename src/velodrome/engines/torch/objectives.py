"""What a batch is trained by: the summed loss of each task, and what is counted of the outputs.

Metrics of the user's own task are counted before the backward pass, so that no batch is kept through the optimizer's
step. Where a trial saw that counting changes the outputs or the batch in place, they are counted after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.engines.torch.calling import SoftmaxInput, scores
from velodrome.engines.torch.feed import repeated
from velodrome.tasks.counts import Batch


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
    #: Whether `loss` adds up the values of a batch, where it has one per example.
    adds_up = True
    #: Of a task in which every answer is one of several classes.
    classes: int | None = None
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

    def scores(self, batch: Batch) -> torch.Tensor | None:
        """A row of `score_width` numbers per example."""
        return None

    def right(self, batch: Batch) -> torch.Tensor | None:
        """Which examples of the batch were answered correctly; None where no answer is right or wrong."""
        return None


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    """Losses are computed in float32 at least."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class OutputObjective(Objective):
    """A loss of one tensor that the model returns."""

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
            outputs = _float32(outputs)
            if outputs.shape[1:] == self.shape:
                return outputs
        return outputs.reshape(len(outputs), *self.shape)

    @abstractmethod
    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor: ...


class ClassObjective(OutputObjective):
    """Cross-entropy of logits or log-probabilities, which are normalised logits."""

    def __init__(self, name: str, classes: int) -> None:
        super().__init__(name, (classes,))
        self.classes = classes

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        smoothing = self.smoothing if self._training else 0.0
        return functional.cross_entropy(outputs, targets, reduction="sum", label_smoothing=smoothing)

    def right(self, batch: Batch) -> torch.Tensor:
        return torch.argmax(self.outputs, 1) == batch.y

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor]:
        return [self.right(batch).sum()]


class ErrorObjective(OutputObjective):
    """The squared error, averaged over the numbers of an example."""

    def __init__(self, name: str, shape: tuple[int, ...], centres: Mapping[str, torch.Tensor]) -> None:
        super().__init__(name, shape)
        self._centres, self._each = centres, max(1, int(np.prod(shape)))

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs, targets, reduction="sum") / self._each

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor]:
        targets = batch.y.double()
        errors = self.outputs.double() - targets
        sums = errors.abs().sum(), errors.square().sum(), (targets - self._centres[part]).square().sum()
        return [each / self._each for each in sums]


class LabelObjective(OutputObjective):
    """Binary cross-entropy of logits, averaged over the labels of an example."""

    def __init__(self, name: str, shape: tuple[int, ...], *, sigmoid: Mapping[bool, bool]) -> None:
        """`sigmoid`: whether the model ends in one, in evaluation and in training; its input is then taken instead."""
        super().__init__(name, shape)
        self._sigmoid, self._each = sigmoid, max(1, int(np.prod(shape)))
        self.score_width = self._each

    @property
    def takes_sigmoid(self) -> bool:
        """Whether it looks into the model for what goes into its sigmoid."""
        return any(self._sigmoid.values())

    def _called(self, model: nn.Module, inputs: Any) -> torch.Tensor:
        if not self._sigmoid[model.training]:
            return self._shaped(scores(model, inputs))
        with SoftmaxInput() as seen:
            outputs = scores(model, inputs)
        logits = seen.sigmoid_input(outputs)
        return self._shaped(outputs.logit(eps=torch.finfo(outputs.dtype).tiny) if logits is None else logits)

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        numbers = targets.to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, numbers, reduction="sum") / self._each

    def scores(self, batch: Batch) -> torch.Tensor:
        return self.outputs.reshape(len(self.outputs), -1)

    def _answers(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.outputs > 0, batch.y > 0

    def right(self, batch: Batch) -> torch.Tensor:
        given, true = self._answers(batch)
        return (given == true).reshape(len(given), -1).all(1)

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        given, true = self._answers(batch)
        hits = (given & true).sum()
        # Areas under the curve are counted when the scores of all processes are there.
        return [self.right(batch).sum(), hits, given.sum() - hits, true.sum() - hits, 0.0, 0.0]


class LanguageObjective(Objective):
    """Cross-entropy of the words that follow, and the state of a network that carries one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        #: The state of so many rows at the beginning of a text; None for a network that carries none.
        self.initial_state: Callable[[int], Any] = getattr(model, "initial_state", lambda rows: None)
        #: That after the words of the last loss.
        self.state: Any = None

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        # The logits end here: the backward pass takes their memory, the largest of all with a large vocabulary.
        words, state, targets = batch.inputs["words"], batch.inputs["state"], batch.targets["y"]
        counted = batch.targets.get("counted")
        if state is None:
            logits, self.state = model(words).flatten(0, 1), None
        else:
            logits, (hidden, cell) = model(words, state)
            # In the order in which the logits lie in memory.
            logits, targets = logits.transpose(0, 1).flatten(0, 1), targets.t()
            counted = None if counted is None else counted.t()
            # Truncated back-propagation: the state continues into the next step, the gradient does not.
            self.state = _float32(hidden.detach()), _float32(cell.detach())
        logits = _float32(logits)
        self.total = targets.numel() if counted is None else float(counted.sum(dtype=torch.float64))
        if counted is None:
            return functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        losses = functional.cross_entropy(logits, targets.flatten(), reduction="none")
        return (losses * counted.flatten()).sum(dtype=torch.float64)

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        return []


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
