"""What the user's own task returned for a batch, as a sum and counts, or a refusal in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from velodrome.errors import BadRequest
from velodrome.tasks.counts import Batch
from velodrome.tasks.own import OwnTask

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
