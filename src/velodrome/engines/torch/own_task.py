"""The objective of each task; that of the user's own task refuses what its loss and counts must not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import nn

from velodrome.data.examples import ExampleSet
from velodrome.engines.torch.objectives import ClassObjective, ErrorObjective, LabelObjective, Objective
from velodrome.errors import BadRequest
from velodrome.tasks.counts import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask
from velodrome.tasks.supervised import Binary, MultiLabel, Regression

_FORMS = "return one value per example, or a sum and the count that it is a sum over"


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

    def results(self, model: nn.Module, batch: Batch) -> list[Any]:
        return [*super().results(model, batch), *self.counted(batch).values()]

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
