"""Two implementations of one strategy are two configurations, named apart wherever configurations are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthetic_races import repeated, result, write_race
from typed_judge import as_result, compare
from velodrome.catalog.base import Implementation
from velodrome.cli.train import summary
from velodrome.judge.configuration import Configuration, distinguishing_fields, implementation_lines, names_of
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import to_markdown

pytestmark = pytest.mark.unit

PARTS = Implementation(own=("its own sums",), framework=("autograd",), stock=("autograd", "torch.optim"))


def of(kind: Any, rate: float = 100.0, path: str | None = None, **fields: Any) -> dict[str, Any]:
    return result(rate=rate, implementation=PARTS.report(kind, path), **fields)


def configuration(made: dict[str, Any]) -> Configuration:
    return Configuration.of(as_result(made))


def test_a_stock_run_is_another_configuration_with_another_name() -> None:
    ours, stock = (configuration(of(kind, workers=2)) for kind in ("velodrome", "stock"))
    assert ours != stock
    assert names_of([ours, stock])[stock.key] == "torch/ddp (stock) with 2 workers"
    assert names_of([ours, stock])[ours.key] == "torch/ddp with 2 workers"
    assert distinguishing_fields([ours, stock]) == []  # the strategy's name says it already


def test_a_job_decides_and_an_older_result_was_velodromes() -> None:
    assert configuration(result()) == configuration(of("velodrome"))
    failed = {**result(status="failed"), "job": {"implementation": "stock"}}
    assert configuration(failed).label == "torch/ddp (stock)"


def test_the_path_of_the_gradients_makes_no_other_configuration() -> None:
    assert configuration(of("velodrome", path="mpi")) == configuration(of("velodrome", path="shared-memory"))


def test_each_implementation_is_measured_against_its_own_single() -> None:
    rows = compare([
        of("velodrome", 200.0, strategy="single"), of("stock", 100.0, strategy="single"),
        of("velodrome", 300.0, workers=2), of("stock", 120.0, workers=2),
    ])
    speedups = {row.label: row.speedup.estimate for row in rows if row.workers == 2 and row.speedup}
    assert speedups == {"torch/ddp": pytest.approx(1.5), "torch/ddp (stock)": pytest.approx(1.2)}


def test_its_parts_and_path_are_told_in_words() -> None:
    assert implementation_lines(as_result(of("velodrome", path="shared-memory"))) == [
        "velodrome over shared-memory", "Velodrome: its own sums", "framework: autograd"
    ]
    assert implementation_lines(as_result(of("stock"))) == ["stock", "framework: autograd, torch.optim"]
    assert implementation_lines(as_result(result())) == []


def test_the_summary_of_a_run_shows_it() -> None:
    table = summary(as_result(of("velodrome", path="mpi")))
    shown = dict(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert shown["implementation"] == "velodrome over mpi\nVelodrome: its own sums\nframework: autograd"
    assert "implementation" not in list(summary(as_result(result())).columns[0].cells)


def test_the_report_names_both_and_lists_their_parts(runs: Path) -> None:
    write_race(runs, [
        *repeated([100, 101], implementation=PARTS.report("velodrome", "mpi")),
        *repeated([60, 61], implementation=PARTS.report("stock")),
    ])
    text = to_markdown(make_report(load_race(runs, "made")))
    assert "| torch/ddp (stock) |" in text
    assert "| implementation of torch/ddp | velodrome over mpi; Velodrome: its own sums; framework: autograd |" in text
    assert "| implementation of torch/ddp (stock) | stock; framework: autograd, torch.optim |" in text
