"""Why several workers would not end with the weights of one: found in a module by one forward pass on a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from velodrome.engines.torch.generators import generators_of
from velodrome.engines.torch.trial import untouched
from velodrome.models.generators import of_process, read_states
from velodrome.models.promises import BATCH_NORMALISATION, RANDOM_NUMBERS, STATISTICS

#: The place of `training` among the arguments of `batch_norm`, of torch's and of torch.nn.functional's.
_TRAINING = 5


class _BatchStatistics(TorchFunctionMode):
    """Around a forward pass: whether a batch was normalised by its own statistics."""

    used = False

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if getattr(function, "__name__", "") == "batch_norm":
            self.used |= bool(named.get("training", args[_TRAINING] if len(args) > _TRAINING else False))
        return function(*args, **named)


def reasons_of(model: nn.Module, call: Callable[[nn.Module], object]) -> list[str]:
    """Why workers and one process differ; `call` calls a copy of the model as training does. Nothing where the model
    cannot be tried, which is reported elsewhere."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    try:
        with untouched(model) as tried, torch.no_grad(), _BatchStatistics() as normalised:
            generators = of_process() | generators_of(tried)
            drawn, buffers = read_states(generators), {name: each.clone() for name, each in tried.named_buffers()}
            call(tried.train())
            draws = read_states(generators) != drawn
            changed = [name for name, each in tried.named_buffers()
                       if name not in buffers or not torch.equal(each, buffers[name])]
    except Exception:
        return []
    # Batch and instance normalisation, by the buffers that both have.
    norms = [(name, each) for name, each in model.named_modules() if hasattr(each, "num_batches_tracked")]
    of_norms = {f"{name}.{kind}" for name, each in norms for kind, _ in each.named_buffers(recurse=False)}
    found = {BATCH_NORMALISATION: normalised.used, RANDOM_NUMBERS: draws,
             STATISTICS: any(name not in of_norms for name in changed)}
    return [reason for reason, holds in found.items() if holds]
