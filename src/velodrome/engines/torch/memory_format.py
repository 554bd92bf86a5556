"""Convolutions of a user's model with weights whose channels come last in memory, where the model computes the same.

A CPU computes them faster, because nothing is rearranged before and after each of them: a step of lenet5 takes a third
less. What they return has that format too, and `view`, which many models call, fails on it; such models stay as they
are. The inputs of the model do not change.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from velodrome.engines.torch.trial import untouched
from velodrome.spec.job import Job


def arrange(job: Job, model: nn.Module, compute: Callable[[nn.Module], torch.Tensor]) -> None:
    """Store the weights so if `compute`, which calls the model on a batch of the job, is a number or more that do not
    depend on it and have a gradient. An optimizer of the user's own sees the weights as the model made them."""
    if job.has_own_optimizer or job.implementation == "stock" or not _weights(model):
        return
    try:
        if _is_the_same(model, compute):
            _store(model)
    except Exception:  # `view`, or whatever else expects another format
        return


def _weights(model: nn.Module) -> list[nn.Parameter]:
    """Those that may be stored otherwise: of convolutions of images in float32 on a CPU."""
    if hasattr(model, "_orig_mod"):  # compiled for the format that it has
        return []
    found = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    plain = [weight for weight in found if isinstance(weight, nn.Parameter)]
    return [weight for weight in plain if weight.dtype == torch.float32 and weight.device.type == "cpu"]


def _store(model: nn.Module) -> None:
    for weight in _weights(model):
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _is_the_same(model: nn.Module, compute: Callable[[nn.Module], torch.Tensor]) -> bool:
    """Whether a copy computes and trains with its weights stored so. Only an evaluation draws no random numbers."""
    with untouched(model) as tried:
        if tried is model:  # it cannot be copied
            return False
        tried.eval()
        with torch.no_grad():
            before = compute(tried)
            _store(tried)
            after = compute(tried)
        rounding = 1e-4 * float(before.abs().max())
        if not torch.allclose(before, after, rtol=1e-4, atol=rounding):
            return False
        tried.train()
        compute(tried).sum().backward()
        return True
