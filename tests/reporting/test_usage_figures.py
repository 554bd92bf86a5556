"""Figures of resources say what they leave out."""

from __future__ import annotations

import pytest

from synthetic_races import result
from typed_judge import as_result, compare
from velodrome.events import make_event
from velodrome.reporting import usage
from velodrome.reporting.figures import COLOURS
from velodrome.reporting.series import hosts_of, run_series

pytestmark = pytest.mark.unit


def test_what_has_no_colour_is_counted_and_named_in_the_caption() -> None:
    sizes = [16 * number for number in range(1, len(COLOURS) + 4)]
    picture = usage.bars(compare([result(batch_size=size) for size in sizes]))
    assert picture is not None
    assert "3 kinds are not drawn" in picture.caption
    said = picture.caption.partition("not drawn")[2]
    assert all(str(size) in said for size in sizes[-3:])
    assert not any(f" {size};" in said or f" {size}." in said for size in sizes[:-3])
    few = usage.bars(compare([result(batch_size=size) for size in sizes[: len(COLOURS)]]))
    assert few is not None
    assert "not drawn" not in few.caption


def test_shares_of_the_fastest_only_are_told_to_be_so() -> None:
    parts = {"compute": 0.7, "wait": 0.2, "communicate": 0.1}
    rows = compare([result(batch_size=16 * n, shares=parts) for n in range(1, usage.MOST_BARS + 3)])
    picture = usage.shares(rows)
    assert picture is not None
    assert f"The {usage.MOST_BARS} fastest of {usage.MOST_BARS + 2}" in picture.caption


def test_faults_are_drawn_where_they_happened() -> None:
    ran = result()
    began = ran["started"]

    def at(moment: float, kind: str, **fields: object) -> object:
        event = make_event(kind, **fields)  # type: ignore[arg-type]
        return event.model_copy(update={"time": began + moment, "received": began + moment})

    node = ran["nodes"][0]
    train = {"role": node["role"], "rank": node["rank"], "phase": "train", "epoch": 1}
    cut = {"fault": "partition node2 1s..2s", "action": "partition", "target": "node2", "host": "node2"}
    kill = {"fault": "kill worker0 at 3s", "action": "kill", "target": "worker0", "host": "node1"}
    series = run_series(began, hosts_of(as_result(ran)), [
        at(1.0, "phase", state="begin", **train), at(2.0, "fault", state="begin", **cut),
        at(3.0, "fault", state="end", **cut), at(4.0, "fault", state="begin", **kill),
        at(4.5, "phase", state="end", seconds=3.5, **train),
    ])  # type: ignore[list-item]
    assert [(span.fault, round(span.start, 3), span.end and round(span.end, 3)) for span in series.faults] == [
        ("partition node2 1s..2s", 2.0, 3.0), ("kill worker0 at 3s", 4.0, None),
    ]
    rows = compare([ran])
    picture = usage.timeline(rows, {rows[0].name: series}, ())
    assert picture is not None
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    assert texts == ["partition node2 1s..2s", "kill worker0 at 3s"]
    assert "Injected faults (`--fault`) are shaded" in picture.caption
