"""The table of duels says what is true of each pair, also where there is no ratio."""

from __future__ import annotations

import pytest

from synthetic_races import repeated
from velodrome.analysis.compare import compare
from velodrome.analysis.objective import ask
from velodrome.reporting.tables import ABSENT, pairwise_table

pytestmark = pytest.mark.unit


def test_a_value_of_zero_is_not_told_as_a_single_run() -> None:
    rows = compare([*repeated([100] * 3, [0.9, 0.91, 0.92]), *repeated([100] * 3, [0.0, 0.1, 0.1], workers=2)])
    table = pairwise_table(ask(rows, "accuracy"), "torch/ddp with 1 worker")
    assert table is not None
    assert [cell.text for cell in table.rows[0][2:]] == [ABSENT, "inconclusive: a value of zero has no ratio"]
