"""Tables for the terminal, of which no word is ever cut: names, paths and numbers stay whole at every width.

A table shrinks to the width of the terminal by breaking lines between words. One that needs more is printed as wide as
it must be, and the terminal wraps its lines.
"""

from __future__ import annotations

from rich.console import RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

from velodrome.cli.safe_console import SafeConsole

#: Wider than any table.
_UNLIMITED = 100_000
#: The width of a column that may be folded, at least.
_FOLDED = 20


def print_table(console: SafeConsole, table: Table) -> None:
    """Print a table within the width of the console, or as wide as its longest words need."""
    least = [_least(console, column) for column in table.columns]
    most = [_most(console, column) for column in table.columns]
    frame = _measured(console, table).maximum - sum(most)
    room, wanted = console.width - frame - sum(least), sum(most) - sum(least)
    for column, low, high in zip(table.columns, least, most, strict=True):
        column.width = high if room >= wanted else low + max(0, room) * (high - low) // max(1, wanted)
    if room < 0:
        table.width = frame + sum(least)
    console.print(table, crop=False)


def least_width(console: SafeConsole, table: Table) -> int:
    """The width of a table whose lines break after every word."""
    spared = sum(_most(console, column) - _least(console, column) for column in table.columns)
    return _measured(console, table).maximum - spared


def _most(console: SafeConsole, column: Column) -> int:
    """The width of a column's longest line."""
    return max(_measured(console, cell).maximum for cell in (column.header, *column.cells))


def _least(console: SafeConsole, column: Column) -> int:
    """The width of a column's longest word, or of its longest line if that may not be broken.

    A column of names that others chose may be folded (`overflow="fold"`): there, even words may be broken.
    """
    if column.no_wrap:
        return _most(console, column)
    longest = max(_measured(console, cell).minimum for cell in (column.header, *column.cells))
    return min(longest, _FOLDED) if column.overflow == "fold" else longest


def _measured(console: SafeConsole, renderable: RenderableType) -> Measurement:
    return Measurement.get(console, console.options.update(width=_UNLIMITED), renderable)
