"""The objective of each task; that of the user's own task refuses what its loss and counts must not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.data.examples import ExampleSet
from velodrome.engines.torch.calling import SoftmaxInput, scores, tensors_in
from velodrome.engines.torch.objectives import Objective, OutputObjective, at_least_float32
from velodrome.errors import BadRequest
from velodrome.tasks.base import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask, described
from velodrome.tasks.supervised import Binary, MultiLabel, Regression


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
        self.score_width, self.takes_sigmoid = self._each, any(sigmoid.values())

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
        #: The state of a number of rows at the beginning of a text; None for a network that carries none.
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
            self.state = at_least_float32(hidden.detach()), at_least_float32(cell.detach())
        logits = at_least_float32(logits)
        self.total = targets.numel() if counted is None else float(counted.sum(dtype=torch.float64))
        if counted is None:
            return functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        losses = functional.cross_entropy(logits, targets.flatten(), reduction="none")
        return (losses * counted.flatten()).sum(dtype=torch.float64)

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        return []


# -- of the user's own task


class OwnObjective(Objective):
    """The user's loss."""

    def __init__(self, task: OwnTask) -> None:
        super().__init__()
        self._task = task
        self._called = False

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        if not self._task.has_counts:
            returned = self._task.user.loss(model, batch)
        else:
            self.outputs = None
            handle = model.register_forward_hook(self._keep)
            try:
                returned = self._task.user.loss(model, batch)
            finally:
                handle.remove()
        loss, count = self._task.loss_and_count(returned, torch.is_tensor, len(batch))
        by_examples = count is None
        self.total = len(batch) if by_examples else _whole(self._task, count)
        if self._called and by_examples != self.by_examples:
            raise BadRequest(
                f"--task {self._task.name!r}: loss() returned one value per example for one batch, and a sum and a "
                "count for another: return the same form for every batch"
            )
        self.by_examples, self._called = by_examples, True
        return loss.sum() if self.adds_up or not by_examples else loss

    def _keep(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        self.outputs = outputs

    def counted(self, batch: Batch) -> dict[str, torch.Tensor | float]:
        """What the user's `metrics` counts, without a history."""
        if not self._task.has_counts:
            return {}
        with torch.no_grad():
            return self._task.count(_detached(self.outputs), batch, torch.is_tensor)

    def results(self, model: nn.Module, batch: Batch) -> list[Any]:
        return [*super().results(model, batch), *self.counted(batch).values()]

    def try_counting(self, batch: Batch) -> dict[str, torch.Tensor | float]:
        """The same, and notice what it changes in place."""
        before = versions_of(self.outputs, batch)
        counted = self.counted(batch)
        self.changes_tensors |= versions_of(self.outputs, batch) != before
        return counted

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        return self._task.in_order(self.counted(batch))


def versions_of(outputs: Any, batch: Batch) -> list[int]:
    """How often each tensor of the outputs and the batch was changed in place."""
    return [tensor._version for each in (outputs, batch.inputs, batch.targets) for tensor in tensors_in(each)]


def _detached(outputs: Any) -> Any:
    """The same outputs without their history."""
    if isinstance(outputs, torch.Tensor):
        return outputs.detach()
    if type(outputs) is dict:
        return {name: _detached(value) for name, value in outputs.items()}
    if type(outputs) in (tuple, list):
        return type(outputs)(map(_detached, outputs))
    return outputs


def _whole(task: OwnTask, count: Any) -> int:
    """The count of a loss, or a refusal if it is no whole number."""
    value = count.item() if isinstance(count, torch.Tensor) and count.numel() == 1 else count
    number = float(value) if isinstance(value, Real) else -1.0
    if not 0 <= number < 2**53 or not number.is_integer():
        raise task.refused_count(described(value, torch.is_tensor))
    return int(number)


def objective_of(
    task: ExampleTask, model: str, data: ExampleSet, device: torch.device, *, sigmoid: Mapping[bool, bool] | None = None
) -> Objective:
    """The objective of a task for its data; `sigmoid` as for `LabelObjective`."""
    if isinstance(task, OwnTask):
        return OwnObjective(task)
    if isinstance(task, Regression):
        parts = ("train", "validation", "test")
        centres = {part: torch.from_numpy(np.asarray(task.centre(data, part))).to(device) for part in parts}
        return ErrorObjective(model, data.targets[0].shape, centres)
    if isinstance(task, Binary | MultiLabel):
        return LabelObjective(model, data.targets[0].shape, sigmoid=sigmoid or {True: False, False: False})
    return ClassObjective(model, data.class_count)
