"""A process that computes makes progress without reporting any; one that waits does not."""

from __future__ import annotations

import time

import pytest

from velodrome.worker import activity
from velodrome.worker.context import Status


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "PERIOD", 0.05)


def test_one_that_computes_makes_progress() -> None:
    status, deadline = Status(), time.monotonic() + 60
    with activity.computing(status):
        while not status.seen and time.monotonic() < deadline:
            sum(range(10_000))
    assert status.seen


def test_one_that_waits_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def idle() -> float:
        looks.append(time.monotonic())
        return 5.0

    monkeypatch.setattr(activity, "own_seconds", idle)
    status, deadline = Status(), time.monotonic() + 60
    with activity.computing(status):
        while len(looks) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(looks) >= 5
    assert status.seen == 0
