"""A user's convolutions lie in memory as those of the zoo do, unless the model would fail or compute something else."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from velodrome.engines.torch.inspection import put_channels_last  # noqa: E402

pytestmark = pytest.mark.unit


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def convolutions(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), *more, nn.Flatten(), nn.Linear(4 * 6 * 6, 5))


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 5)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.last(self.features(batch).view(len(batch), -1))


def is_channels_last(model: nn.Module) -> bool:
    return next(model.parameters()).is_contiguous(memory_format=torch.channels_last)


def put(model: nn.Module) -> tuple[bool, tuple[str, ...]]:
    return put_channels_last(
        "mine:net", model, lambda tried, layout: tried(images(8, 3, 8, 8).to(memory_format=layout))
    )


def test_convolutions_are_put_channels_last_and_compute_the_same() -> None:
    model = convolutions(nn.BatchNorm2d(4), nn.ReLU())
    before = model.eval()(images(8, 3, 8, 8))
    assert put(model) == (True, ())
    assert is_channels_last(model)
    assert model[0](images(8, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model.eval()(images(8, 3, 8, 8)), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_come_back_through_flatten_in_the_layout_of_the_convolutions() -> None:
    model, plain, seen = convolutions(nn.Tanh()), convolutions(nn.Tanh()), list[bool]()
    assert put(model) == (True, ())
    batch = images(8, 3, 8, 8).to(memory_format=torch.channels_last)

    def look(gradient: torch.Tensor) -> None:
        seen.append(gradient.is_contiguous(memory_format=torch.channels_last))

    model[0].register_forward_hook(lambda module, inputs, outputs: outputs.register_hook(look) and None)
    for each in (model, plain):
        each(batch).square().sum().backward()
    assert seen == [True]
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_model_that_calls_view_keeps_its_layout_and_the_way_out_is_told() -> None:
    model = Views()
    done, (note,) = put(model)
    assert not done
    assert not is_channels_last(model)
    assert note.startswith("model 'mine:net' calls view(), so its convolutions keep the memory layout that is slower")
    assert "flatten() or reshape()" in note


@pytest.mark.parametrize("model", [
    pytest.param(convolutions(nn.Dropout(0.5)), id="draws other random numbers"),
    pytest.param(nn.Sequential(nn.Conv2d(3, 4, 3)), id="returns images"),
    pytest.param(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), id="no convolution"),
])
def test_what_would_not_stay_the_same_is_left_as_it_is(model: nn.Module) -> None:
    assert put(model) == (False, ())
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_random_numbers_are_left_as_they_were() -> None:
    model = convolutions(nn.Dropout(0.5))
    torch.manual_seed(5)
    put(model)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
