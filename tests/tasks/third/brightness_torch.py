"""PyTorch's side of the third task: a linear model, squared errors as loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from velodrome.engines.torch.feed import Examples, dtype_of, examples_of
from velodrome.engines.torch.network import Network, seed_everything
from velodrome.engines.torch.tasks.base import EvaluationCounts, Stepper, TorchTask
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import Schedule, evaluation_indices
from velodrome.worker.context import Context


class BrightnessTask(TorchTask):
    """Images by index; an image's target is the mean of its pixels."""

    @classmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        seed_everything(context.job.seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(context.data.input_shape)), 1))
        model = model.to(device=device, dtype=dtype_of(context.job))
        return Network(model, nn.MSELoss(reduction="sum"), from_zoo=True)

    def _examples(self, part: str) -> Examples:
        return examples_of(self._context.data, part, self._context.job, self._replica.device, channels_last=True)

    def begin_epoch(self, schedule: Schedule) -> None:
        mine = schedule.partition(self._replica.rank)
        self._train = self._examples("train")
        self._train.begin(mine.indices, mine.offsets)
        self._offsets, self._batches = mine.offsets.tolist(), mine.batch.tolist()

    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        counts = Counts()
        for step in range(first, last):
            low, high = self._offsets[step : step + 2]
            images = self._train.images(low, high) if high > low else self._train.placeholder()
            counts += self._step(images, high - low, stepper, self._batches[step])
        return counts

    def _step(self, images: torch.Tensor, count: int, stepper: Stepper, batch: int) -> Counts:
        predicted, targets = stepper.forward(images).flatten()[:count], images.mean((1, 2, 3))[:count]
        loss = self._network.loss(predicted, targets)
        stepper.step(loss, batch)
        return self._counts(predicted.detach(), targets, float(loss.detach()))

    def _counts(self, predicted: torch.Tensor, targets: torch.Tensor, loss: float) -> Counts:
        return Counts(len(targets), loss, {"absolute": float((predicted - targets).abs().sum())})

    def evaluate(self, part: Any) -> EvaluationCounts:
        examples = self._examples(part)
        mine = evaluation_indices(len(examples), self._replica.rank, self._replica.size)
        examples.begin(mine, np.array([0, len(mine)]))
        with torch.inference_mode():
            images = examples.images(0, len(mine))
            predicted, targets = self._network.model(images).flatten(), images.mean((1, 2, 3))
            return EvaluationCounts(self._counts(predicted, targets, float(self._network.loss(predicted, targets))))

    def description(self) -> dict[str, Any]:
        return {"dataset": self._context.data.name}


TASK = BrightnessTask
