"""Lightning Fabric in a training process: everything is the torch engine's but what a `Fabric` sets up."""

from __future__ import annotations

from functools import cached_property

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from lightning_fabric.strategies import DDPStrategy
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


class _SetUp(TorchLearner):
    """`setup_module` and `setup_optimizers` wrap the model and the optimizer, and `backward` computes the gradients."""

    @cached_property
    def _fabric(self) -> Fabric:
        return Fabric(accelerator=self._device.type, devices=1)

    def _make_optimizer(self) -> Optimizer:
        return make_optimizer(self._context.job, self._trained, self._fabric.setup_optimizers)

    def _backward(self, loss: torch.Tensor) -> None:
        self._fabric.backward(loss)


class SingleLearner(_SetUp):
    """One process."""

    def _wrapped(self) -> nn.Module:
        return self._fabric.setup_module(self._network.module)


class DdpLearner(_SetUp, PreparedDdpLearner):
    """Fabric puts the model into DistributedDataParallel."""

    @cached_property
    def _fabric(self) -> Fabric:
        # Not a default, but a user's model that leaves a parameter unused could not be trained otherwise.
        strategy = DDPStrategy(find_unused_parameters=not self._network.from_zoo)
        # The variables are those of torchrun. A CPU is the same device for all, so they count as those of one host.
        world, gpus = self._context.world, self._device.type == "cuda"
        hosts = len(set(world.hosts)) if gpus else 1
        fabric = Fabric(accelerator=self._device.type, devices=len(world.peers) // hosts, num_nodes=hosts,
                        strategy=strategy, plugins=[TorchElasticEnvironment()])
        fabric.launch()
        return fabric

    def _prepared(self, model: nn.Module) -> nn.Module:
        return self._fabric.setup_module(model)
