"""The memory layout of a user's convolutions: as in the zoo the faster one on CPUs, where results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

from velodrome.engines.torch.calling import tensors_in
from velodrome.engines.torch.trial import untouched

#: Calls a model as training does, with inputs of such a layout, and returns what it computed.
Compute: TypeAlias = "Callable[[nn.Module, torch.memory_format], Any]"

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
#: What PyTorch says of `view` on a tensor that lies otherwise in memory.
_VIEW_FAILS = "view size is not compatible"
#: Two orders of summation differ by less, relative to the largest number.
_ROUNDING = 1e-4


def put_channels_last(name: str, model: nn.Module, compute: Compute) -> tuple[bool, tuple[str, ...]]:
    """Let the weights of a model's convolutions lie in memory with the channels last, as its inputs are to lie then.
    Returns whether it was done, and what the user should know.

    It is not done on a GPU, nor where the model, of which `compute` calls copies, fails with it or returns something
    else.
    """
    parameters = [*model.parameters()]
    if (
        not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()) or hasattr(model, "_orig_mod")
        or any(parameter.device.type != "cpu" for parameter in parameters)
    ):
        return False, ()
    try:
        if not all(_is_same(model, compute, training=training) for training in (True, False)):
            return False, ()
    except Exception as error:
        note = (
            f"model {name!r} calls view(), so its convolutions keep the memory layout that is slower on CPUs: "
            "flatten() or reshape() in its place allows the faster one"
        )
        return False, (note,) if _VIEW_FAILS in str(error) else ()
    model.to(memory_format=torch.channels_last)
    for module in model.modules():
        if type(module) is nn.Flatten:
            module.register_forward_pre_hook(_keep_layout)
    return True, ()


def _keep_layout(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Before `nn.Flatten`: let the gradient come back in the layout of its input, in which the layers before it are
    fast. Without this `lenet5` takes 6 % longer."""
    images = inputs[0] if inputs else None
    if isinstance(images, torch.Tensor) and images.requires_grad and images.ndim == 4:
        images.register_hook(_channels_last)


def _channels_last(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def _is_same(model: nn.Module, compute: Compute, *, training: bool) -> bool:
    """Whether a copy of a model computes the same in both layouts, from the same random numbers."""
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        with untouched(model) as tried, torch.set_grad_enabled(training):
            if tried is model:  # it cannot be copied
                return False
            outputs = [*tensors_in(compute(tried.to(memory_format=layout).train(training), layout))]
            if training:
                sum(each.sum() for each in outputs if each.requires_grad).backward()  # type: ignore[union-attr]
            found.append([each.detach() for each in outputs])
    return len(found[0]) == len(found[1]) and all(map(_are_equal, *found))


def _are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.stride() != second.stride() or not first.numel():
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    return torch.allclose(first, second, rtol=_ROUNDING, atol=_ROUNDING * float(first.abs().max()))
