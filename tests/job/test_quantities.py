"""Durations and shares as users write them."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.errors import BadRequest
from velodrome.job.race import parse_race
from velodrome.job.values import seconds_of, share_of


@pytest.mark.parametrize(("text", "seconds"), [
    ("20m", 1200), ("1h30m", 5400), ("90s", 90), ("90", 90), (90, 90), ("1.5h", 5400), ("2 min", 120), ("1h 5s", 3605),
])
def test_durations_are_read(text: Any, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "3x", "-5m", 0, "0s", "m", "1m1h", True, None, float("nan"), "inf"])
def test_what_is_no_duration_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(ValueError, match="20m, 1h30m or 90s"):
        seconds_of(text)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), (0.05, 0.05), (" 12.5% ", 0.125)])
def test_shares_are_read(text: Any, share: float) -> None:
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "5", "200%", 0, -0.1, True, "little"])
def test_what_is_no_share_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"5% or 0\.05"):
        share_of(text)


def test_a_race_file_names_its_budget_as_the_command_does() -> None:
    race = parse_race({"budget": "1h30m", "tolerance": "3%"})
    assert (race.budget, race.tolerance) == (5400, 0.03)
    with pytest.raises(BadRequest, match="budget 'soon': write a duration"):
        parse_race({"budget": "soon"})
