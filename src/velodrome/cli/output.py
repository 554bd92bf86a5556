"""Everything that the command prints goes through here, so that no text from outside acts on the terminal.

Escape sequences in class names, texts, file names and messages are shown, not obeyed, and a huge word is shortened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from velodrome.printable import LONGEST_LINE, printable


def say(text: object = "", *, longest: int | None = LONGEST_LINE, flush: bool = False) -> None:
    """Print text to stdout; a line longer than `longest` is shortened."""
    print(printable(text, longest), flush=flush)


def complain(text: object) -> None:
    """Print a problem to stderr."""
    print(printable(f"velodrome: {text}"), file=sys.stderr)


def say_on_stderr(text: object) -> None:
    """Print what belongs to a problem to stderr, such as a traceback."""
    print(printable(text), file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print an object as one line of ASCII."""
    print(json.dumps(value), flush=True)


class SafeConsole(Console):
    """A console of rich that escapes what it is given; the sequences that it adds itself for colours remain."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"highlight": False, "emoji": False, **more})

    def render_str(self, text: str, **more: Any) -> Text:  # type: ignore[override]
        # Before it is measured, so that columns stay aligned.
        return super().render_str(printable(text), **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            clean = segment.control or segment.text.isprintable()
            yield segment if clean else Segment(printable(segment.text, None), segment.style)


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
