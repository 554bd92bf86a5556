"""The table of pairs says what is settled between the recommended configuration and each other."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic_races import repeated
from typed_judge import compare
from velodrome.judge.candidates import ask
from velodrome.judge.criteria import Criteria
from velodrome.reporting.tables import pairwise_table

pytestmark = pytest.mark.unit


def findings(results: list[dict[str, Any]], objective: str, best: str) -> list[list[str]]:
    table = pairwise_table(ask(compare(results), Criteria(objective)), best)
    assert table is not None
    return [[cell.text for cell in row[2:]] for row in table.rows]


def test_accuracies_differ_in_points_also_where_one_is_zero() -> None:
    results = [*repeated([100] * 3, [0.9, 0.91, 0.92]), *repeated([100] * 3, [0.0, 0.1, 0.1], workers=2)]
    assert findings(results, "accuracy", "torch/ddp with 1 worker") == [["+84.3", "beaten after 3 repetitions"]]


def test_each_pair_is_beaten_level_or_open_by_the_margins_of_the_verdict() -> None:
    single = repeated([100, 101, 99], strategy="single")
    near = repeated([100.2, 101.3, 99.1], strategy="allreduce", workers=2)
    results = [*single, *near, *repeated([60, 61, 59], workers=2)]
    assert findings(results, "throughput", "torch/single with 1 worker") == [
        ["1.00×", "tied"], ["1.67×", "beaten by torch/allreduce with 2 workers after 3 repetitions"],
    ]
    once = [*single[:1], *repeated([60], workers=2)]
    assert findings(once, "throughput", "torch/single with 1 worker") == [["1.67×", "open: 2 more runs, about 3 min"]]
