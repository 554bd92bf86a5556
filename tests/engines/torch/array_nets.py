"""Models and tasks on arrays, as a user writes them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn


def small(input_shape, outputs):
    """Flattens whatever comes."""
    width = torch.Size(input_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, outputs))


def ends_in_sigmoid(input_shape, outputs):
    return nn.Sequential(small(input_shape, outputs), nn.Sigmoid())


def normalised(input_shape, outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


class Both(nn.Module):
    """Words by their numbers, and measurements."""

    def __init__(self, numbers, outputs):
        super().__init__()
        self.words, self.rest = nn.Embedding(20, 4), nn.Linear(4 + numbers, outputs)

    def forward(self, inputs):
        return self.rest(torch.cat([self.words(inputs["words"]).mean(1), inputs["numbers"]], 1))


def both(input_shape, outputs):
    return Both(input_shape["numbers"][0], outputs if isinstance(outputs, int) else sum(outputs.values()))


def too_wide(input_shape):
    """Returns what does not fit a target of one number."""
    return nn.Linear(*input_shape, *input_shape)


class Quantile:
    """One value per example, and a penalty that every example carries."""

    better = {"coverage": "more"}  # noqa: RUF012 (as users write it)

    def loss(self, model, batch):
        error = batch.targets["y"] - model(batch.inputs["x"]).reshape(-1)
        penalty = 0.01 * sum(parameter.square().sum() for parameter in model.parameters())
        return torch.maximum(0.9 * error, -0.1 * error) + penalty

    def metrics(self, outputs, batch):
        return {"covered": (batch.y <= outputs.reshape(-1)).sum(), "width": outputs.abs().sum()}

    def measure(self, counts):
        return {"coverage": counts["covered"] / counts["total"], "width": counts["width"] / counts["total"]}


class Masked:
    """A sum over those numbers of a row that are there, and how many they are; the model is called twice."""

    def loss(self, model, batch):
        there = batch.y[:, :3] > -0.5
        predicted = (model(batch.x) + model(2 * batch.x))[:, :3]
        losses = functional.smooth_l1_loss(predicted, batch.y[:, :3], reduction="none")
        return (losses * there).sum(), there.sum()


class Distance:
    """One value per example, of one call of the model."""

    better = {"off": "less"}  # noqa: RUF012

    def loss(self, model, batch):
        return (model(batch.x) - batch.y).square().sum(1)

    def metrics(self, outputs, batch):
        return {"off": (outputs - batch.y).abs().sum()}


class Near(Distance):
    """A sum over some examples, and how many they are."""

    def loss(self, model, batch):
        near = batch.y[:, 0] < 4
        return (super().loss(model, batch) * near).sum(), near.sum()


class Product:
    """A loss whose gradient needs the outputs and the inputs as they were."""

    better = {"sum": "less"}  # noqa: RUF012

    def loss(self, model, batch):
        outputs = model(batch.x)
        return (outputs * outputs - batch.y.reshape(-1, 1)).square().sum(1)

    def metrics(self, outputs, batch):
        return {"sum": outputs.abs().sum()}


class ChangedOutputs(Product):
    """Counts by changing the outputs."""

    def metrics(self, outputs, batch):
        return {"sum": outputs.abs_().sum()}


class ChangedInputs(Product):
    """Counts by changing the inputs."""

    def metrics(self, outputs, batch):
        batch.x.zero_()
        return {"sum": outputs.abs().sum()}


class TwoTargets:
    """Several inputs and targets by name."""

    better = {"hits": "more"}  # noqa: RUF012

    def loss(self, model, batch):
        outputs = model(batch.inputs)
        price, kind = batch.targets["price"], batch.targets["kind"]
        errors = (outputs[:, 0] - price).square()
        return errors + functional.cross_entropy(outputs[:, :2], kind, reduction="none")

    def metrics(self, outputs, batch):
        return {"hits": (outputs[:, :2].argmax(1) == batch.targets["kind"]).sum()}


class Scalar:
    def loss(self, model, batch):
        return model(batch.x).mean()


class Detached:
    def loss(self, model, batch):
        return model(batch.x).detach().reshape(-1)


class WrongShapes:
    def loss(self, model, batch):
        return (model(batch.x) @ batch.x).sum(1)


class NanMetric(Quantile):
    def measure(self, counts):
        return {"coverage": float("nan")}


class NoLoss:
    pass


class UnknownMetric(Quantile):
    better = {"bleu": "more"}  # noqa: RUF012


class MissingKey:
    def loss(self, model, batch):
        return model(batch.x).reshape(-1) - batch.targets["price"]


class CountingInNumPy(Quantile):
    """Counts of NumPy's own types, as many metrics of other libraries are."""

    def metrics(self, outputs, batch):
        covered = (batch.y <= outputs.reshape(-1)).numpy()
        return {"covered": np.sum(covered), "width": np.float32(outputs.abs().sum())}


class WrongInside(nn.Module):
    """Two layers that do not fit each other."""

    def __init__(self, inputs):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 7), nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden)


def wrong_inside(input_shape):
    return WrongInside(input_shape[0])
