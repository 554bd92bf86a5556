"""Configurations side by side in a terminal, the best of each column marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from velodrome.analysis.compare import Row

_COLUMNS: tuple[tuple[str, str, str, Callable[[Sequence[float]], float] | None], ...] = (
    ("test accuracy", "accuracy", ".4f", max),
    ("training s", "train_seconds", ",.2f", min),
    ("start-up s", "startup_seconds", ",.1f", min),
    ("examples/s", "examples_per_second", ",.0f", max),
    ("speedup", "speedup", ".2f", max),
    ("scaling", "scaling", ".2f", max),
    ("CPU %", "cpu_percent", ",.0f", None),
    ("memory MiB", "memory_bytes", ",.0f", min),
)


def comparison(rows: Sequence[Row]) -> Table:
    """Speedup is over the engine's `single`, scaling over the strategy's own one-worker run."""
    columns = [column for column in _COLUMNS if any(getattr(row, column[1]) is not None for row in rows)]
    table = Table(title="Comparison", title_justify="left")
    for heading in ("strategy", "workers", "batch"):
        table.add_column(heading)
    for heading, *_ in columns:
        table.add_column(heading, justify="right")
    for row in sorted(rows, key=lambda row: (row.label, row.batch_size, row.workers)):
        cells = [_cell(getattr(row, field), field, form, rows, best) for _, field, form, best in columns]
        workers = f"{row.workers} + {row.servers} ps" if row.servers else str(row.workers)
        table.add_row(row.label, workers, str(row.batch_size), *cells)
    return table


def _cell(value: float | None, field: str, form: str, rows: Sequence[Row], best: Any) -> str:
    if value is None:
        return "–"
    text = format(value / 2**20 if field == "memory_bytes" else value, form)
    present = [getattr(row, field) for row in rows if getattr(row, field) is not None]
    return f"[bold green]{text}[/bold green]" if best is not None and value == best(present) else text
