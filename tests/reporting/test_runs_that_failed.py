"""How tables show configurations some of whose runs crashed or missed the target."""

from __future__ import annotations

import pytest

from synthetic_races import repeated, result
from typed_judge import compare
from velodrome.job.values import Target
from velodrome.reporting.tables import Cell, Table, view_table

pytestmark = pytest.mark.unit


def cell(table: Table, heading: str, row: int = 0) -> Cell:
    return table.rows[row][[column.heading for column in table.columns].index(heading)]


def test_crashed_and_interrupted_runs_are_counted_apart() -> None:
    results = [*repeated([100, 101, 99], workers=2), *(result("ddp", 2, status="failed", seed=seed) for seed in (4, 5)),
               result("ddp", 2, status="interrupted", seed=6)]
    table = view_table("results", compare(results))
    assert (cell(table, "runs").text, cell(table, "runs").detail) == ("3", "2 crashed, 1 not finished")


def test_the_time_to_a_target_shows_how_many_runs_reached_it_of_those_that_tried() -> None:
    results = [*repeated([100, 101, 99], [0.95, 0.95, 0.5], workers=2), result("ddp", 2, status="failed", seed=4),
               *repeated([50, 51, 49], strategy="single")]
    rows = compare(results, Target.parse("accuracy>=0.9"))
    table = view_table("results", rows)
    shown = [cell(table, "time to target", row) for row in range(2)]
    assert [one.detail for one in shown] == ["2 of 4 runs", "94.12 – 97.96"]
    assert "their mean" in table.note
