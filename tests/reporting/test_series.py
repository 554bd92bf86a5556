"""Runs over time, made from events: what is whole is drawn, what a crash or another program left behind is not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from velodrome.events import read_events
from velodrome.events.models import Event
from velodrome.reporting.series import Extent, Span, run_series, totals

pytestmark = pytest.mark.unit

BEGAN, HOSTS = 100.0, {("worker", 0): "here"}
NETWORK = {"in": 10, "out": 20, "loopback": 5}


def read(tmp_path: Path, events: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events as a report reads them."""
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return read_events(tmp_path / "events.jsonl")


def event(time: Any, kind: str = "resources", role: Any = "worker", rank: Any = 0, **fields: Any) -> dict[str, Any]:
    sample = {"cpu_percent": 50.0, "memory_bytes": 1000, "network": NETWORK} if kind == "resources" else {}
    return {"time": time, "kind": kind, "role": role, "rank": rank, **sample, **fields}


def test_phases_and_samples_are_counted_from_the_start_of_the_run(tmp_path: Path) -> None:
    series = run_series(BEGAN, HOSTS, read(tmp_path, [
        event(101.0, "phase", phase="train", state="begin"), event(102.0),
        event(103.0, "phase", phase="train", state="end"),
    ]))
    assert series.spans[("worker", 0)] == [Span("train", 1.0, 3.0)]
    assert series.samples[("worker", 0)].seconds == [2.0]
    assert totals(series)["memory_bytes"] == Extent(1000, 1000, 1000)


@pytest.mark.parametrize("wrong", [
    event("noon"), event(None), event(math.nan), event(102.0, role=["worker"]), event(102.0, rank="0"),
    event(102.0, rank=7), event(102.0, cpu_percent="all"), event(102.0, memory_bytes=None),
    event(102.0, network=[1, 2]), event(102.0, network={"in": "much"}), event(99.0),
])
def test_an_event_that_is_not_whole_is_passed_over(tmp_path: Path, wrong: dict[str, Any]) -> None:
    series = run_series(BEGAN, HOSTS, read(tmp_path, [event(101.0), wrong]))
    assert series.samples[("worker", 0)].seconds == [1.0]
    assert totals(series)["cpu_percent"] == Extent(50.0, 50.0, 50.0)


def test_events_of_a_host_with_another_clock_are_placed_by_the_controllers_clock(tmp_path: Path) -> None:
    series = run_series(BEGAN, HOSTS, read(tmp_path, [
        event(1.0, "phase", phase="train", state="begin", received=101.0), event(2.0, received=102.7),
        event(3.0, "phase", phase="train", state="end", received=103.0),
    ]))
    assert series.spans[("worker", 0)] == [Span("train", 1.0, 3.0)]
    assert series.samples[("worker", 0)].seconds == [2.0], "one offset for a process, so that delays do not distort"
