"""Figures of resources say what they leave out."""

from __future__ import annotations

import pytest

from synthetic_races import result
from velodrome.analysis.compare import compare
from velodrome.reporting import usage
from velodrome.reporting.figures import COLOURS

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
