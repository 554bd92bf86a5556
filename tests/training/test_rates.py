"""The learning rate of every step: compared with PyTorch's schedulers and with formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.training.loop import rates_of_epoch

pytestmark = pytest.mark.unit

PER_EPOCH, EPOCHS = 7, 6
TOTAL = PER_EPOCH * EPOCHS


def sequence(**asked) -> list[float]:
    """The rates of all steps of a job."""
    asked = {"engine": "torch", "optimizer": "sgd", "learning_rate": 0.2, "epochs": EPOCHS} | asked
    job = resolve(Job(**asked))
    parts = [rates_of_epoch(job, epoch, PER_EPOCH, TOTAL) for epoch in range(1, EPOCHS + 1)]
    return [float(rate) for part in parts for rate in part]


def by_torch(make, steps: int, rate: float = 0.2) -> list[float]:
    """The rates that a scheduler of PyTorch gives to so many steps, or epochs."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=rate)
    scheduler, theirs = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return theirs


def test_without_a_schedule_the_rate_stays() -> None:
    assert sequence() == [0.2] * TOTAL


def test_cosine_is_that_of_pytorch() -> None:
    expected = by_torch(lambda kinds, optimizer: kinds.CosineAnnealingLR(optimizer, TOTAL), TOTAL)
    assert sequence(schedule="cosine") == pytest.approx(expected, rel=1e-9)


def test_linear_is_that_of_pytorch() -> None:
    expected = by_torch(
        lambda kinds, optimizer: kinds.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=TOTAL), TOTAL
    )
    assert sequence(schedule="linear") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("milestones", "steps"), [("10,30", [10, 30]), ("2epochs+4epochs", [14, 28])])
def test_steps_at_milestones_are_those_of_pytorch(milestones: str, steps: list[int]) -> None:
    expected = by_torch(lambda kinds, optimizer: kinds.MultiStepLR(optimizer, steps, gamma=0.3), TOTAL)
    rates = sequence(schedule="step", milestones=milestones, milestone_factor=0.3)
    assert rates == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("schedule", "factor"), [
    ("constant", lambda done: 1.0), ("linear", lambda done: 1 - done),
    ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
])
@pytest.mark.parametrize(("warmup", "steps"), [("5", 5), (5, 5), ("5steps", 5), ("2epochs", 14), ("0.5epochs", 4)])
def test_the_rate_rises_evenly_and_then_follows_the_schedule(warmup, steps, schedule, factor) -> None:
    rising = [0.2 * (step + 1) / steps for step in range(steps)]
    after = [0.2 * factor((step - steps) / (TOTAL - steps)) for step in range(steps, TOTAL)]
    assert sequence(warmup=warmup, schedule=schedule) == pytest.approx([*rising, *after], rel=1e-12)


def test_by_epoch_all_steps_of_an_epoch_have_one_rate() -> None:
    cosine = by_torch(lambda kinds, optimizer: kinds.CosineAnnealingLR(optimizer, EPOCHS - 2), EPOCHS - 2)
    expected = np.repeat([0.1, 0.2, *cosine], PER_EPOCH)
    assert sequence(schedule="cosine", schedule_by="epoch", warmup="2epochs") == pytest.approx(expected, rel=1e-9)


def test_a_job_that_ends_earlier_ends_its_schedule_earlier() -> None:
    job = resolve(Job(engine="torch", schedule="linear", learning_rate=1.0, steps=10))
    assert rates_of_epoch(job, 2, PER_EPOCH, 10)[:3] == pytest.approx([0.3, 0.2, 0.1])


def test_decay_by_epoch_keeps_its_meaning_and_may_follow_a_warm_up() -> None:
    factors = [1, 1, 0.5, 0.25, 0.125, 0.0625]
    expected = np.repeat(0.2 * np.array(factors), PER_EPOCH)
    assert sequence(decay=0.5, decay_after=2) == pytest.approx(expected)
    warm = sequence(decay=0.5, decay_after=2, warmup="3")
    assert warm == pytest.approx([0.2 / 3, 0.4 / 3, *expected[2:]])


@pytest.mark.parametrize(("asked", "factor"), [
    ({"scale_rate": "none", "workers": 4, "batch_scope": "per-worker", "strategy": "ddp"}, 1),
    ({"scale_rate": "linear", "workers": 4, "batch_scope": "per-worker", "strategy": "ddp"}, 4),
    ({"scale_rate": "sqrt", "workers": 4, "batch_scope": "per-worker", "strategy": "ddp"}, 2),
    ({"scale_rate": "linear", "workers": 4, "strategy": "ddp"}, 1),
    ({"scale_rate": "linear", "accumulate": 3}, 3),
    ({"scale_rate": "linear", "accumulate": 2, "workers": 2, "strategy": "parameter-server", "engine": "tensorflow"},
     2),
])
def test_the_rate_is_scaled_with_the_examples_behind_an_update(asked, factor) -> None:
    assert sequence(**asked) == pytest.approx([0.2 * factor] * TOTAL)
