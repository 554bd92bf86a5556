"""Finds out whether a PyTorch model scales its input as if it were bytes, by watching a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from velodrome.models.byte_input import Operation, is_for_bytes

_OPERATIONS: dict[Any, Operation] = {
    **dict.fromkeys(
        (torch.div, torch.divide, torch.true_divide, torch.Tensor.div, torch.Tensor.div_, torch.Tensor.divide,
         torch.Tensor.__truediv__, torch.Tensor.__itruediv__), "divide"),
    **dict.fromkeys(
        (torch.mul, torch.multiply, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.multiply, torch.Tensor.__mul__,
         torch.Tensor.__rmul__, torch.Tensor.__imul__), "multiply"),
    **dict.fromkeys(
        (torch.sub, torch.subtract, torch.Tensor.sub, torch.Tensor.sub_, torch.Tensor.subtract, torch.Tensor.__sub__,
         torch.Tensor.__isub__), "subtract"),
}  # fmt: skip
#: What keeps the values of the input.
_SAME_VALUES = {
    torch.Tensor.float, torch.Tensor.to, torch.Tensor.type, torch.Tensor.contiguous, torch.Tensor.clone, torch.clone,
    torch.Tensor.view, torch.Tensor.reshape, torch.reshape, torch.Tensor.flatten, torch.flatten, torch.Tensor.permute,
    torch.permute, torch.Tensor.transpose, torch.transpose,
}


class _Watch(TorchFunctionMode):
    """Around a forward pass: whether the input, wherever it goes, is scaled as bytes are."""

    def __init__(self, images: torch.Tensor) -> None:
        super().__init__()
        self._inputs, self.found = [images], False

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        of_input = bool(args) and any(args[0] is one for one in self._inputs)
        if of_input and len(args) > 1 and (operation := _OPERATIONS.get(function)):
            other = args[1]
            number = other.detach().cpu().numpy() if isinstance(other, torch.Tensor) else other
            self.found = self.found or is_for_bytes(operation, number)
        result = function(*args, **(kwargs or {}))
        if of_input and function in _SAME_VALUES:
            self._inputs.append(result)
        return result


def expects_bytes(model: nn.Module, images: torch.Tensor) -> bool:
    """Whether a forward pass in evaluation begins with such arithmetic; False where it cannot be watched."""
    try:
        with torch.no_grad(), _Watch(images) as watch:
            model.eval()(images)
    except Exception:  # compiled code need not take a mode, and what the model raises is reported elsewhere
        return False
    return watch.found
