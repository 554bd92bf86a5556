"""Processes that must make every pass together: what one without examples computes, and what is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from velodrome.engines.torch.calling import tensors_in
from velodrome.engines.torch.learner import TorchLearner
from velodrome.errors import BadRequest


class _Nothing(torch.autograd.Function):
    """A loss of zero whose gradients are zeros, even of outputs that are not finite."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor) -> torch.Tensor:
        ctx.like = outputs.new_zeros(()).expand(outputs.shape)
        return outputs.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        like: torch.Tensor = ctx.like
        return like


class TogetherLearner(TorchLearner):
    """All processes compute at the same time, whether they have examples or not."""

    forward_together = True
    #: What the last forward pass in training was called with.
    _last: tuple[Any, ...] = ()

    def _refuse_few_examples(self) -> None:
        """Each process must take part in every evaluation."""
        data = self._context.data
        for part in ("validation", "test"):
            count = len(getattr(data, part))
            if 0 < count < self._transport.size:
                raise BadRequest(
                    f"--workers {self._transport.size}: {self._context.job.strategy} evaluates with all workers at the "
                    f"same time, and the {part} part has {count} examples; use fewer workers"
                )

    def _remember_inputs(self, model: nn.Module) -> None:
        """Keep what the model is called with, for a step in which this process has no examples."""
        model.register_forward_pre_hook(self._remember)

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            self._last = inputs

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        super().step(self.idle_loss() if loss is None else loss, batch)

    def idle_loss(self) -> torch.Tensor:
        """The loss of a process without examples: it computes with those of its last step, for nothing."""
        if not self._last:
            raise BadRequest(
                f"--workers {self._transport.size}: a worker has no example in its first batch, and "
                f"{self._context.job.strategy} computes with all workers at the same time; use fewer workers, a larger "
                "batch or a smaller --accumulate"
            )
        outputs = [each for each in tensors_in(self.forward(*self._last)) if each.requires_grad]
        return torch.stack([_Nothing.apply(each) for each in outputs]).sum()
