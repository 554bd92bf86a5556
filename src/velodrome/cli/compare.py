"""Configurations as a table for the terminal, the best of each column marked; narrow terminals get fewer columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.cli.tables import SafeConsole, least_width, print_table
from velodrome.judge.compare import Row, bests_of, measure_of, ratios_of_fewer, tasks_of
from velodrome.judge.conditions import is_loaded
from velodrome.judge.configuration import distinguishing_fields, short_arguments, short_text
from velodrome.judge.measures import Measure
from velodrome.judge.objective import qualities_of
from velodrome.judge.plausibility import suspects
from velodrome.judge.statistics import Ratio

_PLACES = ("speedup", "scaling")
_ORDER = (
    "examples_per_second", *_PLACES, "time_to_target", "train_seconds", "total_seconds", "startup_seconds",
    "cpu_percent", "memory_bytes",
)


Column = tuple[str, Callable[[Row], str]]


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
    if hidden := ", ".join(heading.replace("\n", " ") for heading, _ in columns[shown:]):
        console.print(
            f"Not shown, because the terminal is {console.width} columns wide: {hidden}. `{report}` has every number.",
            soft_wrap=True, markup=False,
        )
    return lines + bool(hidden)


def _columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that have values, the most important first."""
    columns: list[Column] = []
    for name in (*(measure.name for measure in qualities_of(rows)), *_ORDER):
        if name in _PLACES:
            if any(getattr(row, name) is not None for row in rows):
                best = _best_places(rows, name)
                columns.append((name, partial(_place_cell, name=name, best=best, suspects=suspects(rows))))
        elif name == "total_seconds" and any("examples_per_second" in row.spreads for row in rows):
            continue  # it decides only where no run reports examples
        elif any(name in row.spreads for row in rows):
            measure = measure_of(rows, name)
            columns.append((_heading(measure), partial(_cell, measure=measure, best=bests_of(rows, name))))
    return columns


def _best_places(rows: Sequence[Row], name: str) -> dict[str, float]:
    """For each row, by name, the best ratio of its task."""
    bests = {}
    for members in tasks_of(rows).values():
        doubtful = suspects(members)
        best = max((place.estimate for row in members
                    if (place := getattr(row, name)) is not None and row.name not in doubtful), default=0.0)
        bests.update({row.name: best for row in members})
    return bests


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
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    notes = ["* other programs were running beside it"] if any(
        is_loaded(result) for row in rows for result in row.results) else []
    if any(heading in _PLACES for heading, _ in columns) and ratios_of_fewer(rows):
        notes.append("speedup, scaling: of the repetitions that both ran")
    table.caption, table.caption_justify = "; ".join(notes) or None, "left"
    for row in sorted(rows, key=lambda row: (row.label, row.batch_size, row.workers, row.servers)):
        batch = [] if same_batch else [str(row.batch_size or "–")]
        values = [escape(short_text(row.configuration, name, short)) for name in differing]
        label = f"{row.label}{' *' if any(map(is_loaded, row.results)) else ''}"
        table.add_row(label, row.configuration.size, *batch, *values, *(cell(row) for _, cell in columns))
    return table


def _heading(measure: Measure) -> str:
    if measure.name == "examples_per_second":
        return "examples\n/s"
    heading = f"{measure.heading} {measure.unit.removesuffix(' of a core')}".strip()
    return heading.replace(" ", "\n", 1)


def _cell(row: Row, measure: Measure, best: Mapping[str, float | None]) -> str:
    value = row.mean(measure.name)
    if value is None:
        return "–"
    return _marked(measure.text(value), value == best[row.name])


def _place_cell(row: Row, name: str, best: Mapping[str, float], suspects: Mapping[str, str]) -> str:
    place: Ratio | None = getattr(row, name)
    if place is None:
        return "–"
    if row.name in suspects:
        return f"{place.estimate:.2f}\n{suspects[row.name]}"
    return _marked(f"{place.estimate:.2f}", place.estimate == best[row.name])


def _marked(text: str, best: bool) -> str:
    return f"[bold green]{text}[/bold green]" if best else text
