"""Calibration: the machine's speed between the runs of a race, and the sentence on its drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from velodrome.judge.plausibility import drift_note
from velodrome.races import hosts
from velodrome.races.hosts import FILE, RUNS_BETWEEN, Calibration, measured_rate, rates


def test_it_measures_before_a_block_and_every_few_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([100.0, 90.0, 80.0])
    monkeypatch.setattr(hosts, "measured_rate", lambda: next(speeds))
    monkeypatch.setattr(hosts, "SECONDS_BETWEEN", 0.0)
    made = Calibration(tmp_path)
    made.before_block()
    for _ in range(RUNS_BETWEEN + 1):
        made.before_run()
    assert rates(tmp_path) == [100.0, 90.0]
    made.before_block()
    assert rates(tmp_path) == [100.0, 90.0, 80.0]


def test_short_jobs_are_not_held_up_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "measured_rate", lambda: 100.0)
    made = Calibration(tmp_path)
    for _ in range(20):
        made.before_block()
        made.before_run()
    assert rates(tmp_path) == [100.0]


def test_a_real_rate_is_a_number_and_takes_about_as_long_as_it_should() -> None:
    assert measured_rate(0.02) > 0


def test_lines_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    assert rates(tmp_path) == []
    (tmp_path / FILE).write_text('{"rate": 5}\nnonsense\n[1]\n{"rate": "x"}\n{"rate": -1}\n{"rate": 7.5}\n')
    assert rates(tmp_path) == [5.0, 7.5]


@pytest.mark.parametrize(("measured", "percent"), [
    ([100, 100, 100, 78, 78, 78], 22), ([100, 99, 98, 97, 96], 0), ([100, 40, 100, 100, 100], 0), ([100, 50], 0),
    ([], 0),
])
def test_a_machine_that_drifts_is_named_and_a_single_disturbance_is_not(measured: list[float], percent: int) -> None:
    note = drift_note(measured)
    if not percent:
        assert note == ""
        return
    assert note.startswith(f"The machine's speed changed by {percent} % during the race (calibration).")
    assert "makes no comparison unreliable" in note
