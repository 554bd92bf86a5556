"""Your own task under PyTorch: digits by their ink, predicted so that nine of ten guesses are high enough.

velodrome train --dataset digits --model own_task:build --task own_task:Ink --engine torch
velodrome train --dataset digits --model own_task:build --task own_task:Ink --engine torch --strategy ddp --workers 2
"""

import torch
from torch import nn


def build(input_shape):
    """One number per image; `input_shape` is channels, height, width."""
    channels, height, width = input_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 32), nn.ReLU(), nn.Linear(32, 1))


class Ink:
    """How much ink an image has, with a loss that punishes low guesses nine times as hard as high ones."""

    #: Metrics and their directions; the first one decides which model is better.
    better = {"off": "less", "enough": "more"}

    def loss(self, model, batch):
        """One value per example. `batch.x` is what the model takes."""
        error = self._ink(batch) - model(batch.x).squeeze(1)
        return torch.maximum(0.9 * error, -0.1 * error)

    def metrics(self, outputs, batch):
        """Sums over the batch; they are added up over all batches and workers."""
        error = self._ink(batch) - outputs.squeeze(1)
        return {"high_enough": (error <= 0).sum(), "distance": error.abs().sum()}

    def measure(self, counts):
        """Metrics from the sums; `total` is how many examples there were."""
        return {
            "off": counts["distance"] / counts["total"],
            "enough": counts["high_enough"] / counts["total"],
        }

    def _ink(self, batch):
        return batch.x.flatten(1).mean(1)
