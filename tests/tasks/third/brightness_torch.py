"""PyTorch's side of the third task: a linear model, squared errors as loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from velodrome.data.pixels import transform_of
from velodrome.engines.torch.feed import dtype_of
from velodrome.engines.torch.network import Examples, Network, seed_everything
from velodrome.engines.torch.objectives import Objective, ObjectiveModule
from velodrome.tasks.base import Batch


class BrightnessObjective(Objective):
    """An image's target is the mean of its pixels."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        predicted, targets = model(batch.x).flatten(), batch.x.mean((1, 2, 3))
        self.total, self._errors = len(batch), (predicted - targets).detach()
        return functional.mse_loss(predicted, targets, reduction="sum")

    def count(self, batch: Batch, part: str) -> Sequence[torch.Tensor]:
        return [self._errors.abs().sum()]


class BrightnessTask(Examples):
    """Images by index."""

    def network(self, device: torch.device) -> Network:
        job, data = self._context.job, self._context.data
        seed_everything(job.seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(data.input_shape)), 1))
        model = model.to(device=device, dtype=dtype_of(job))
        module = ObjectiveModule(model, BrightnessObjective())
        return Network(model, module, from_zoo=True, channels_last=True, pixels=transform_of(job.pixels, data))

    def description(self, network: Network) -> dict[str, Any]:
        return {"dataset": self._context.data.name}


TASK = BrightnessTask
