"""CSV and TSV files as tables: read twice, to learn which columns are numbers and then to keep them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from velodrome.data.bad_data import Faults
from velodrome.data.delimited import TextTable
from velodrome.data.tables.columns import CategoryBuilder, NumberBuilder, Table, Tally
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: Rows that are transposed at a time.
_ROWS = 4_096


def read_csv(
    path: Path, wanted: Sequence[str], categorical: Collection[str], faults: Faults,
    progress: Callable[[float], None] = lambda share: None,
) -> Table:
    """The wanted columns; rows that cannot be used are faults and left out. `categorical` ones are never numbers."""
    text = TextTable(path)
    if (line := text.line_with("\0")) is not None:
        raise BadRequest(
            f"cannot read {str(path)!r} as a table: line {line} has a NUL character, which no table of text has; "
            "look whether the file is damaged, or in another format"
        )
    tallies = {name: Tally() for name in wanted}
    for _, cells in _pieces(text, wanted, Faults(), lambda share: progress(share / 2)):
        for name, column in cells.items():
            tallies[name].take(column)
    empty = [name for name in wanted if tallies[name].empty]
    if len(empty) < len(wanted):  # otherwise there is no row at all
        _refuse_empty(path, empty)
    builders = {
        name: NumberBuilder(name, faults) if tallies[name].numeric and name not in categorical
        else CategoryBuilder(name, faults) for name in wanted
    }
    lines: list[int] = []
    for numbers, cells in _pieces(text, wanted, faults, lambda share: progress((1 + share) / 2)):
        lines += numbers
        places = [f"line {number}" for number in numbers]
        for name, column in cells.items():
            builders[name].take(column, places)
    built = {name: builder.column() for name, builder in builders.items()}
    sound = np.logical_and.reduce([good for _, good in built.values()])
    table = Table({name: column for name, (column, _) in built.items()}, np.array(lines, np.int64), "line")
    return table.rows(sound)


def _pieces(
    text: TextTable, wanted: Sequence[str], faults: Faults, progress: Callable[[float], None]
) -> Iterator[tuple[list[int], dict[str, Sequence[str]]]]:
    """Line numbers and the cells of each wanted column, a few thousand rows at a time."""
    places = [text.heads.index(name) for name in wanted]
    rows = text.rows(faults)
    while piece := list(islice(rows, _ROWS)):
        numbers = [number for number, _ in piece]
        columns = list(zip(*(cells for _, cells in piece), strict=True))
        yield numbers, {name: columns[place] for name, place in zip(wanted, places, strict=True)}
        progress(numbers[-1] / max(1, text.lines))


def _refuse_empty(path: Path, empty: Sequence[str]) -> None:
    if empty:
        raise BadRequest(
            f"{str(path)!r}: column {shown(empty[0])!r} has no values: leave it out with &ignore={empty[0]}"
        )
