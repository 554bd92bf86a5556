"""Configurations as a table for the terminal, the best of each column marked; narrow terminals get fewer columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.cli.tables import SafeConsole, least_width, print_table
from velodrome.judge.columns import Column, columns_of, ratios_of_fewer
from velodrome.judge.compare import Row
from velodrome.judge.conditions import is_loaded
from velodrome.judge.configuration import distinguishing_fields, short_arguments, short_text
from velodrome.judge.measures import THROUGHPUT
from velodrome.judge.statistics import Ratio


def print_comparison(console: SafeConsole, rows: Sequence[Row], report: str) -> int:
    """Print the configurations of a race, and return how many lines that took; `report` is the command that shows all
    of their numbers.

    Speedup is over the engine's `single`, scaling over the strategy's own one-worker run. On a terminal that is too
    narrow, columns are left out from the right, and their names are printed.
    """
    columns = _columns(rows)
    shown = len(columns)
    table = _table(rows, columns)
    while shown > 2 and console.is_terminal and least_width(console, table) > console.width:
        shown -= 1
        table = _table(rows, columns[:shown])
    lines = len(console.render_lines(table, console.options.update(width=10_000), pad=False))
    print_table(console, table)
    if hidden := ", ".join(_heading(column).replace("\n", " ") for column in columns[shown:]):
        console.print(
            f"Not shown, because the terminal is {console.width} columns wide: {hidden}. `{report}` has every number.",
            soft_wrap=True, markup=False,
        )
    return lines + bool(hidden)


def _columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that have values, the most important first."""
    columns = columns_of(rows, "terminal")
    if any(column.name == THROUGHPUT.name for column in columns):  # the whole time decides only without it
        columns = [column for column in columns if column.name != "total_seconds"]
    return columns


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    batches = {row.batch_size for row in rows}
    same_batch = len(batches) == 1
    of_batch = f", batch {min(batches)}" if same_batch and any(batches) else ""
    table = Table(title=f"Comparison{of_batch}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
                  show_edge=False)
    table.add_column("strategy", no_wrap=True)
    table.add_column("workers", no_wrap=True)
    if not same_batch:
        table.add_column("batch", justify="right")
    configurations = [row.configuration for row in rows]
    differing, short = distinguishing_fields(configurations), short_arguments(configurations)
    for name in differing:
        table.add_column(name.replace("_", " "))
    for column in columns:
        table.add_column(_heading(column), justify="right")
    notes = ["* other programs were running beside it"] if any(
        is_loaded(result) for row in rows for result in row.results) else []
    if any(column.measure is None for column in columns) and ratios_of_fewer(rows):
        notes.append("speedup, scaling: of the repetitions that both ran")
    table.caption, table.caption_justify = "; ".join(notes) or None, "left"
    for row in sorted(rows, key=lambda row: (row.label, row.batch_size, row.workers, row.servers)):
        batch = [] if same_batch else [str(row.batch_size or "–")]
        values = [escape(short_text(row.configuration, name, short)) for name in differing]
        label = f"{row.label}{' *' if any(map(is_loaded, row.results)) else ''}"
        table.add_row(label, row.configuration.size, *batch, *values, *(_cell(row, column) for column in columns))
    return table


def _heading(column: Column) -> str:
    measure = column.measure
    if measure is None:
        return column.name
    if measure is THROUGHPUT:
        return "examples\n/s"
    heading = f"{measure.heading} {measure.unit.removesuffix(' of a core')}".strip()
    return heading.replace(" ", "\n", 1)


def _cell(row: Row, column: Column) -> str:
    best, measure = column.best[row.name], column.measure
    if measure is not None:
        value = row.mean(measure.name)
        return "–" if value is None else _marked(measure.text(value), value == best)
    ratio: Ratio | None = getattr(row, column.name)
    if ratio is None:
        return "–"
    if row.name in column.suspect:
        return f"{ratio.estimate:.2f}\n{column.suspect[row.name]}"
    return _marked(f"{ratio.estimate:.2f}", ratio.estimate == best)


def _marked(text: str, best: bool) -> str:
    return f"[bold green]{text}[/bold green]" if best else text
