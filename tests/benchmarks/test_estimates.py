"""Estimates against the recorded races: no network is trained here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.mark.parametrize(("basis", "races"), [("measured", 20), ("runs", 17)])
def test_estimates_agree_with_what_the_recorded_races_took(basis: str, races: int) -> None:
    from estimates import FILE, MOST_FACTOR, MOST_MEDIAN, errors, judge

    judged = judge(json.loads(FILE.read_text(encoding="utf-8")))
    assert len({one.race for one in judged if one.basis == basis}) == races
    middle, worst = errors(judged, basis)
    assert middle <= MOST_MEDIAN
    assert worst <= MOST_FACTOR


def test_errors_count_either_way() -> None:
    from estimates import Judged, errors

    judged = [Judged(1, "", "runs", expected, 10.0) for expected in (5.0, 9.0, 13.0)]
    assert errors(judged, "runs") == (pytest.approx(0.3), 2.0)


def test_a_race_is_estimated_from_the_runs_of_others_only() -> None:
    from estimates import FILE, judge

    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    assert [one.basis for one in judge(recorded[:1])] == ["measured"]
    changed = json.loads(json.dumps(recorded[:2]))
    for run in changed[0]["runs"]:
        run["result"]["seconds"]["total"] *= 100
    before, after = ([one.expected for one in judge(races) if one.race == 1] for races in (recorded[:2], changed))
    assert before == after
