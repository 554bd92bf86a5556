"""Weights of a user's convolutions have their channels last where the model computes the same, and only there."""

from __future__ import annotations

import pytest

from velodrome.spec.job import Job

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.unit


class Viewed(torch.nn.Module):
    """As most tutorials write it: `view` needs the memory of an ordinary tensor."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3)
        self.dense = torch.nn.Linear(6 * 36, 4)

    def forward(self, x):
        hidden = torch.relu(self.conv(x))
        return self.dense(hidden.view(len(x), -1))


class ViewedInTraining(Viewed):
    def forward(self, x):
        hidden = torch.relu(self.conv(x))
        return self.dense(hidden.view(len(x), -1) if self.training else hidden.flatten(1))


class ByMemory(Viewed):
    """Computes with the order of numbers in memory, which nothing forbids."""

    def forward(self, x):
        hidden = self.conv(x)
        return self.dense(hidden.as_strided((len(x), 6 * 36), (6 * 36, 1)))


class Flattened(Viewed):
    def forward(self, x):
        return self.dense(torch.dropout(torch.relu(self.conv(x)), 0.3, self.training).flatten(1))


def arranged(model, *, dtype=torch.float32, **fields):
    from velodrome.engines.torch import memory_format

    torch.manual_seed(1)
    model = model.to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randn(5, 3, 8, 8, dtype=dtype)
    memory_format.arrange(Job(engine="torch", **fields), model, lambda tried: tried(images))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters()), "a copy was tried"
    assert model.training
    return model.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_model_that_computes_the_same_has_its_channels_last():
    assert arranged(Flattened())


@pytest.mark.parametrize("kind", [Viewed, ViewedInTraining, ByMemory])
def test_a_model_that_expects_ordinary_memory_keeps_it(kind):
    assert not arranged(kind())


def test_numbers_that_gain_nothing_and_optimizers_of_the_users_keep_it():
    assert not arranged(Flattened(), dtype=torch.float64)
    assert not arranged(Flattened(), optimizer="mine:make")
    assert not arranged(Flattened(), implementation="stock")
