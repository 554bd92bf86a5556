"""What a batch of arrays is trained by: the summed loss of each task, and what is counted of the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.data.examples import ExampleSet
from velodrome.engines.torch.calling import SoftmaxInput, scores
from velodrome.engines.torch.feed import repeated
from velodrome.errors import BadRequest
from velodrome.tasks.counts import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask
from velodrome.tasks.supervised import Binary, MultiLabel, Regression


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

    def __init__(self) -> None:
        self.outputs: Any = None
        #: What the summed loss is a sum over.
        self.total: float = 0

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The sum of the losses of a batch, with its history."""

    @abstractmethod
    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        """Sums over the batch of the last `loss`, in the order of the task's `counted`."""

    def scores(self, batch: Batch) -> torch.Tensor | None:
        """A row of numbers per example that an evaluation needs from all processes; None if it needs none."""
        return None

    def right(self, batch: Batch) -> torch.Tensor | None:
        """Which examples of the batch were answered correctly; None where no answer is right or wrong."""
        return None


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
        if isinstance(outputs, torch.Tensor) and outputs.dtype == torch.bfloat16:
            outputs = outputs.float()  # losses are computed in float32
        if isinstance(outputs, torch.Tensor) and outputs.shape[1:] == self.shape:
            return outputs
        return outputs.reshape(len(outputs), *self.shape)

    @abstractmethod
    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor: ...


class ClassObjective(OutputObjective):
    """Cross-entropy of logits or log-probabilities."""

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


class OwnObjective(Objective):
    """The user's loss."""

    def __init__(self, task: OwnTask) -> None:
        super().__init__()
        self._task = task
        self._called = False
        #: Whether `loss` adds up the values of a batch, where the user returns one per example.
        self.adds_up = True

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
        loss, self.total, by_examples = sum_and_count(self._task.name, returned, batch)
        if self._called and by_examples != self.by_examples:
            raise BadRequest(
                f"--task {self._task.name!r}: loss() returned one value per example for one batch, and a sum and a "
                "count for another: return the same form for every batch"
            )
        self.by_examples, self._called = by_examples, True
        return loss.sum() if self.adds_up else loss

    def _keep(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        self.outputs = outputs

    def counted(self, batch: Batch) -> dict[str, torch.Tensor | float]:
        """What the user's `metrics` counts."""
        return count_of(self._task, self.outputs, batch) if self._task.has_counts else {}

    def try_counting(self, batch: Batch) -> dict[str, torch.Tensor | float]:
        """The same, and notice what it changes in place."""
        before = versions_of(self.outputs, batch)
        found = self.counted(batch)
        self.changes_tensors |= versions_of(self.outputs, batch) != before
        return found

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor | float]:
        found = self.counted(batch)
        names = self._task.counted
        if tuple(found) != names and {*found} != {*names}:
            raise BadRequest(
                f"--task {self._task.name!r}: metrics() counted {', '.join(names) or 'nothing'} before, and now "
                f"{', '.join(found) or 'nothing'}: return the same counts for every batch"
            )
        return [found[name] for name in names]


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

    def forward(self, inputs: dict[str, torch.Tensor], targets: dict[str, torch.Tensor]) -> torch.Tensor:
        if not self._autocast:
            return self.objective.loss(self.model, Batch(inputs, targets))
        device = next(self.model.parameters()).device
        with torch.autocast(device.type, torch.bfloat16):
            return self.objective.loss(self.model, Batch(inputs, targets)).float()


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
    assert data.classes is not None, "classes were counted when it was loaded"
    return ClassObjective(model, (data.classes,))


_FORMS = "return one value per example, or a sum and the count that it is a sum over"


def sum_and_count(task: str, returned: Any, batch: Batch) -> tuple[torch.Tensor, float, bool]:
    """The loss, one value or one per example, what its sum is over, and whether that is the number of examples."""
    if not isinstance(returned, torch.Tensor):
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise BadRequest(f"--task {task!r}: loss() returned {_described(returned)}: {_FORMS}")
        loss, count = returned
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise BadRequest(f"--task {task!r}: loss() returned {_described(loss)} as its sum: {_FORMS}")
        return loss.reshape(()) if loss.ndim else loss, _number(task, "the count of loss()", count), False
    size = len(batch)
    if returned.ndim != 1 or len(returned) != size:
        raise BadRequest(
            f"--task {task!r}: loss() returned {_described(returned)} for {size} examples: {_FORMS}"
        )
    return returned, size, True


def count_of(task: OwnTask, outputs: Any, batch: Batch) -> dict[str, torch.Tensor | float]:
    """What the user's `metrics` counted of a batch, without a history."""
    with torch.no_grad():
        found = task.user.metrics(_detached(outputs), batch)
    if not isinstance(found, Mapping):
        raise BadRequest(f"--task {task.name!r}: metrics() returned {_described(found)}: return sums by name")
    for name, value in found.items():
        numeric = value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, Real)
        if not numeric:
            raise BadRequest(
                f"--task {task.name!r}: metrics() returned {_described(value)} as {name!r}: return one number, the "
                "sum over the batch"
            )
    return dict(found)


def versions_of(outputs: Any, batch: Batch) -> list[int]:
    """How often each tensor of the outputs and the batch was changed in place."""
    return [tensor._version for each in (outputs, batch.inputs, batch.targets) for tensor in _tensors_of(each)]


def _tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors_of(part)]


def _detached(outputs: Any) -> Any:
    """The same outputs without their history."""
    if isinstance(outputs, torch.Tensor):
        return outputs.detach()
    if type(outputs) is dict:
        return {name: _detached(value) for name, value in outputs.items()}
    if type(outputs) in (tuple, list):
        return type(outputs)(map(_detached, outputs))
    return outputs


def _number(task: str, what: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    number = float(value) if isinstance(value, Real) else -1.0
    if not 0 <= number < 2**53 or not number.is_integer():
        raise BadRequest(
            f"--task {task!r}: {what} is {_described(value)}: return a whole number, how many the loss is a sum over"
        )
    return int(number)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else "a single number"
    return f"{value!r}" if isinstance(value, Real) else f"{type(value).__name__!r}"
