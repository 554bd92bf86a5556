"""A task of your own for PyTorch: its loss and its metrics. This one predicts how bright an image is. Train it:

COMMAND
"""

import torch
from torch import nn


class Task:
    """Made once in every training process, without arguments."""

    #: Which of the metrics should be `more` or `less`; the first one decides which run is better.
    better = {"within": "more", "error": "less"}

    def loss(self, model, batch):
        """Return one value per example, or a sum and the count that it is a sum over; never a mean.

        `batch.x` is what the model takes, `batch.y` the target; `batch.inputs` and `batch.targets` have all by name.
        """
        return nn.functional.huber_loss(model(batch.x).squeeze(1), self.target(batch), reduction="none", delta=0.1)

    def metrics(self, outputs, batch):
        """Optional: sums over the batch, by name. They are added up over all batches and workers."""
        error = (outputs.squeeze(1) - self.target(batch)).abs()
        return {"error": error.sum(), "within": (error < 0.05).sum()}

    def measure(self, counts):
        """Optional: the metrics, from the sums over all examples. Without it, each sum is divided by `total`."""
        return {"error": counts["error"] / counts["total"], "within": counts["within"] / counts["total"]}

    def target(self, batch):
        """What is to be predicted. Use `batch.y` instead, if your data has it."""
        return batch.x.flatten(1).mean(1)


def build(input_shape):
    """The model; `input_shape` is channels, height, width. More arguments of your own: --model-arg."""
    channels, height, width = input_shape
    pixels = channels * height * width
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 32), nn.ReLU(), nn.Linear(32, 1))


if __name__ == "__main__":  # a look at the shapes, without training
    print(build((1, 8, 8))(torch.zeros(5, 1, 8, 8)).shape)
