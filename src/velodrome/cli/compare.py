"""Configurations side by side in a terminal, the best of each column marked; narrow terminals get fewer columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from velodrome.analysis.compare import Row

_COLUMNS: tuple[tuple[str, str, str, Callable[[Sequence[float]], float] | None], ...] = (
    ("test\naccuracy", "accuracy", ".4f", max),
    ("examples\n/s", "examples_per_second", ",.0f", max),
    ("speedup", "speedup", ".2f", max),
    ("scaling", "scaling", ".2f", max),
    ("training\ns", "train_seconds", ",.2f", min),
    ("start-up\ns", "startup_seconds", ",.1f", min),
    ("CPU\n%", "cpu_percent", ",.0f", None),
    ("memory\nMiB", "memory_bytes", ",.0f", min),
)


def comparison(rows: Sequence[Row], width: int | None = None) -> Table:
    """Speedup is over the engine's `single`, scaling over the strategy's own one-worker run.

    Columns are left out from the right until the table is no wider than `width`.
    """
    columns = [column for column in _COLUMNS if any(getattr(row, column[1]) is not None for row in rows)]
    measure = Console(width=10_000)
    for count in range(len(columns), 1, -1):
        table = _table(rows, columns[:count])
        if width is None or Measurement.get(measure, measure.options, table).maximum <= width:
            break
    return table


def _table(rows: Sequence[Row], columns: Sequence[tuple[str, str, str, Any]]) -> Table:
    batches = {row.batch_size for row in rows}
    same_batch = f", batch {batches.pop()}" if len(batches) == 1 else ""
    table = Table(title=f"Comparison{same_batch}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("strategy", no_wrap=True)
    table.add_column("workers", no_wrap=True)
    if not same_batch:
        table.add_column("batch", justify="right")
    for heading, *_ in columns:
        table.add_column(heading, justify="right")
    for row in sorted(rows, key=lambda row: (row.label, row.batch_size, row.workers)):
        cells = [_cell(getattr(row, field), field, form, rows, best) for _, field, form, best in columns]
        workers = f"{row.workers}+{row.servers} ps" if row.servers else str(row.workers)
        table.add_row(row.label, workers, *([] if same_batch else [str(row.batch_size)]), *cells)
    return table


def _cell(value: float | None, field: str, form: str, rows: Sequence[Row], best: Any) -> str:
    if value is None:
        return "–"
    text = format(value / 2**20 if field == "memory_bytes" else value, form)
    present = [getattr(row, field) for row in rows if getattr(row, field) is not None]
    return f"[bold green]{text}[/bold green]" if best is not None and value == best(present) else text
