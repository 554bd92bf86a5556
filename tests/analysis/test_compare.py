"""Comparing made-up results whose answers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velodrome.analysis.compare import compare, verdict
from velodrome.cli.compare import comparison
from velodrome.report.figures import race_figure

pytestmark = pytest.mark.unit


def result(strategy: str, workers: int, rate: float, accuracy: float = 0.95, **more: Any) -> dict[str, Any]:
    node = {"cpu_percent": {"mean": 50.0}, "memory_bytes": {"mean": 2**20}}
    history = [{"epoch": e, "seconds": 1.0, "validation_accuracy": accuracy * e / 3} for e in (1, 2, 3)]
    return {
        "status": "finished", "engine": "torch", "strategy": strategy, "workers": workers, "servers": 0,
        "batch_size": 64, "test": {"accuracy": accuracy}, "seconds": {"train": 3.0, "startup": 1.0},
        "throughput": {"examples_per_second": rate}, "nodes": [node] * workers, "history": history, **more,
    }


def test_speedup_is_over_single_and_scaling_over_ones_own_single_worker() -> None:
    rows = compare([result("single", 1, 100.0), result("ddp", 1, 80.0), result("ddp", 2, 120.0)])
    two = next(row for row in rows if row.workers == 2)
    assert two.speedup == pytest.approx(1.2)
    assert two.scaling == pytest.approx(1.5)


def test_repetitions_become_a_median_and_failures_are_left_out() -> None:
    rows = compare([
        result("ddp", 2, 90.0), result("ddp", 2, 110.0), result("ddp", 2, 100.0), result("ddp", 2, 1.0, status="failed")
    ])
    assert len(rows) == 1
    assert (rows[0].runs, rows[0].examples_per_second) == (3, 100.0)
    assert rows[0].speedup is None


def test_a_faster_but_less_accurate_strategy_does_not_win() -> None:
    rows = compare([result("ddp", 2, 100.0, accuracy=0.95), result("allreduce", 2, 200.0, accuracy=0.90)])
    assert "torch/ddp with 2 workers" in verdict(rows)


def test_it_says_when_distributing_does_not_pay() -> None:
    rows = compare([result("ddp", 1, 100.0), result("ddp", 2, 70.0)])
    assert "do not distribute" in verdict(rows)


def test_one_run_each_is_told_to_be_no_proof() -> None:
    assert "one run each" in verdict(compare([result("ddp", 1, 100.0)]))
    assert "no run finished" in verdict([])


def test_table_and_figure_show_every_configuration(tmp_path: Path) -> None:
    from rich.console import Console

    results = [result("single", 1, 100.0), result("ddp", 1, 80.0), result("ddp", 2, 120.0)]
    rows = compare(results)
    console = Console(width=160, record=True)
    console.print(comparison(rows))
    text = console.export_text()
    assert "torch/single" in text
    assert "1.50" in text
    path = race_figure(rows, results, tmp_path / "race.png", "a race")
    assert path.read_bytes()[:4] == b"\x89PNG"
