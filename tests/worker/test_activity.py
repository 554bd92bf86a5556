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


def test_one_that_waits_makes_none() -> None:
    status = Status()
    with activity.computing(status):
        time.sleep(0.1)
        before = status.seen
        time.sleep(1.0)
        assert status.seen <= before + 1  # a first look may see what was computed before it
