"""Configurations side by side in a terminal, the best of each column marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from velodrome.analysis.compare import Row, best_of
from velodrome.analysis.measures import BY_NAME, Measure
from velodrome.analysis.objective import quality_of
from velodrome.analysis.statistics import Ratio

_MEASURES = ("train_seconds", "time_to_target", "startup_seconds", "examples_per_second")
_PLACES = ("speedup", "scaling")
_RESOURCES = ("cpu_percent", "memory_bytes")


def comparison(rows: Sequence[Row]) -> Table:
    """Speedup is over the engine's `single`, scaling over the strategy's own one-worker run."""
    table = Table(title="Comparison", title_justify="left")
    first = [quality_of(rows), *(BY_NAME[name] for name in _MEASURES)]
    last = [BY_NAME[name] for name in _RESOURCES]
    first, last = ([measure for measure in part if any(measure.name in row.spreads for row in rows)]
                   for part in (first, last))
    places = [name for name in _PLACES if any(getattr(row, name) is not None for row in rows)]
    for heading in ("strategy", "workers", "batch"):
        table.add_column(heading)
    for heading in (*(_heading(m) for m in first), *places, *(_heading(m) for m in last)):
        table.add_column(heading, justify="right")
    for row in sorted(rows, key=lambda row: (row.label, row.batch_size, row.workers, row.servers)):
        cells = [
            *(_cell(row, measure, rows) for measure in first),
            *(_place(getattr(row, name), [getattr(other, name) for other in rows]) for name in places),
            *(_cell(row, measure, rows) for measure in last),
        ]
        table.add_row(row.label, row.configuration.size, str(row.batch_size), *cells)
    return table


def _heading(measure: Measure) -> str:
    if measure.name == "examples_per_second":
        return "examples/s"
    return f"{measure.heading} {measure.unit.removesuffix(' of a core')}".strip()


def _cell(row: Row, measure: Measure, rows: Sequence[Row]) -> str:
    value = row.median(measure.name)
    if value is None:
        return "–"
    return _marked(measure.text(value), value == best_of(rows, measure.name))


def _place(place: Ratio | None, places: Sequence[Ratio | None]) -> str:
    if place is None:
        return "–"
    return _marked(f"{place.estimate:.2f}", place.estimate == max(p.estimate for p in places if p is not None))


def _marked(text: str, best: bool) -> str:
    return f"[bold green]{text}[/bold green]" if best else text
