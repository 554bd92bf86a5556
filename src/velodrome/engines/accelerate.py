"""Hugging Face Accelerate in a training process: everything is the torch engine's but what an `Accelerator` wraps."""

from __future__ import annotations

from functools import cached_property

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn

from velodrome.engines.torch import worker
from velodrome.engines.torch.fused_optimizer import make_optimizer
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Optimizer
from velodrome.engines.torch.strategies.ddp import PreparedDdpLearner
from velodrome.training.context import Context


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    worker.train_wrapped(context, SingleLearner, DdpLearner)


class _Accelerated(TorchLearner):
    """`prepare` wraps the model and the optimizer, and `backward` computes the gradients."""

    @cached_property
    def _accelerator(self) -> Accelerator:
        # Not a default, but a user's model that leaves a parameter unused could not be trained otherwise.
        options = DistributedDataParallelKwargs(find_unused_parameters=not self._network.from_zoo)
        return Accelerator(cpu=self._device.type == "cpu", kwargs_handlers=[options])

    def _make_optimizer(self) -> Optimizer:
        return make_optimizer(self._context.job, self._trained, self._accelerator.prepare)

    def _backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)


class SingleLearner(_Accelerated):
    """One process."""

    def _wrapped(self) -> nn.Module:
        return self._accelerator.prepare(self._network.module)


class DdpLearner(_Accelerated, PreparedDdpLearner):
    """Accelerate puts the model into DistributedDataParallel."""

    def _prepared(self, model: nn.Module) -> nn.Module:
        return self._accelerator.prepare(model)
