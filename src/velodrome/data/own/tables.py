"""CSV, TSV and Parquet files: read row by row, or as a table of columns, with limits on what a hostile file could make
large.

Text is read twice into columns, to learn which are numbers and then to keep them. Parquet is read through pyarrow,
which only this module imports.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from velodrome import files
from velodrome.data.base import Faults, NDArray, WrongData, memory_budget, np
from velodrome.data.own.columns import (
    MOST_COLUMNS,
    CategoryBuilder,
    Column,
    NumberBuilder,
    Request,
    Table,
    Tally,
    no_column,
)
from velodrome.errors import BadRequest, bytes_text, shown
from velodrome.machine import process_memory

TEXT, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
_LONGEST_CELL = 1 << 20
#: Characters that are parsed again because a quote before them was not closed: so many, and so many times the file's.
_AGAIN, _AGAIN_OF_FILE = 32 << 20, 8


def read_rows(path: Path, faults: Faults, *, join_last: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with their line numbers; those with wrong quotes, too few or too many cells are faults.

    `join_last` treats surplus cells as unquoted commas of the last column, and quotes as plain characters.
    """
    text = TextTable(path)
    for line, cells in text.rows(faults, join_last=join_last):
        yield line, dict(zip(text.heads, cells, strict=True))


class TextTable:
    """A table whose lines are held in memory, to be parsed once or several times."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with _opened(path) as stream:
                self._lines = stream.readlines()
            self.heads, self._mark, self._begun = _heads(iter(self._lines))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise _no_table(path, error) from None

    @property
    def lines(self) -> int:
        return len(self._lines)

    def line_with(self, character: str) -> int | None:
        """The first line that has this character."""
        return next((number for number, line in enumerate(self._lines, 1) if character in line), None)

    def rows(self, faults: Faults, *, join_last: bool = False) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of each row that has as many cells as there are heads."""
        width = len(self.heads)
        for line, cells in self._parsed(faults, strict=not join_last):
            if not cells:
                continue
            if len(cells) > width and join_last:
                faults.add("rows with unquoted commas", f"line {line}", remedy="repaired")
                cells = [*cells[: width - 1], ",".join(cells[width - 1 :])]
            if len(cells) != width:
                faults.add(
                    "rows with too few or too many cells", f"line {line}", f"{len(cells)} cells instead of {width}"
                )
                continue
            yield line, cells

    def _parsed(self, faults: Faults, *, strict: bool) -> Iterator[tuple[int, list[str]]]:
        """Cells of each row and the line it begins in; after a row that cannot be parsed, the next line begins one.

        Unless it is strict, an unclosed quote silently swallows everything that follows into its cell.
        """
        lines, first, bad = self._lines, self._begun, 0
        left = _AGAIN + _AGAIN_OF_FILE * sum(map(len, lines))
        while first < len(lines):
            reader = csv.reader(map(lines.__getitem__, range(first, len(lines))), delimiter=self._mark, strict=strict)
            begun = first
            try:
                for cells in reader:
                    yield begun + 1, cells
                    begun = first + reader.line_num
                return
            except csv.Error as error:
                faults.add("rows with a quote that is not closed or not doubled", f"line {begun + 1}", str(error))
                left -= sum(len(lines[place]) for place in range(begun + 1, first + reader.line_num))
                first = begun + 1
                bad = bad or first
            if left < 0:
                raise BadRequest(
                    f"cannot read {str(self._path)!r} as a table: many rows have a quote that is not closed, the first "
                    f"of them in line {bad}; close each, or double a quote within a cell"
                )


def _heads(lines: Iterator[str]) -> tuple[list[str], str, int]:
    """The column names, the delimiter, and how many lines the header takes."""
    csv.field_size_limit(_LONGEST_CELL)
    first = next(lines, "")
    mark = max(",;\t", key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=mark, strict=True)
    heads = [head.strip() for head in next(reader, [])]
    return heads, mark, reader.line_num


def _opened(path: Path) -> TextIO:
    """A table that fits into memory, where its lines take several times its size."""
    return io.TextIOWrapper(files.open_regular(path, memory_budget(1 / 8)), encoding="utf-8-sig", newline="")


def _no_table(path: Path, error: Exception) -> BadRequest:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, UnicodeDecodeError):
        why = f"byte {error.start} is not UTF-8; convert it, for example with iconv -f latin1 -t utf-8"
    return BadRequest(f"cannot read {str(path)!r} as a table: {why}")


def columns(path: Path) -> list[str]:
    """The heads of a table's columns."""
    try:
        with _opened(path) as stream:
            return _heads(stream)[0]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _no_table(path, error) from None


def check_columns(path: Path, wanted: dict[str, str]) -> None:
    """Refuse a table without the columns that are asked for; `wanted` maps an option to its column."""
    heads = columns(path)
    for option, column in wanted.items():
        if column not in heads:
            predict = f", or the column to predict as {path.name}?target=COLUMN" if option == "image" else ""
            raise no_column(path, heads, option, column, predict)


def heads_of(path: Path) -> list[str]:
    """The names of a table's columns, as its header says."""
    if path.suffix.lower() in PARQUET:
        with _parquet(path) as file:
            names = list(file.schema_arrow.names)
    else:
        names = columns(path)
    if len(names) > MOST_COLUMNS:
        raise BadRequest(
            f"{str(path)!r} has {len(names):,} columns, but at most {MOST_COLUMNS:,} are read: make a table of those "
            "you need"
        )
    return names


#: Bytes of memory for a cell while a Parquet file is read: as a number, and in the array that is stored.
_EACH = 24


def read_table(path: Path, request: Request, faults: Faults, progress: Callable[[float], None]) -> Table:
    """The columns that are asked for; rows that cannot be used are faults and left out."""
    named = (*request.categorical, *((request.part,) if request.part else ()))
    if path.suffix.lower() in PARQUET:
        with _parquet(path) as file:
            needed, free = file.metadata.num_rows * len(request.wanted) * _EACH, process_memory()
        if needed > free:
            raise WrongData(
                f"it takes {bytes_text(needed)} of memory to be read, but only {bytes_text(free)} are free: "
                "name fewer columns with &features=, or take a part of the rows"
            )
        table = read_parquet(path, request.wanted, named, faults, progress)
    else:
        table = read_csv(path, request.wanted, named, faults, progress)
    if not len(table):
        raise WrongData(f"it has no rows that can be used{faults.because}")
    return table


#: Rows that are transposed at a time.
_CSV_ROWS = 4_096


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
    numeric = [name for name in wanted if tallies[name].numeric and name not in categorical]
    builders = {name: (NumberBuilder if name in numeric else CategoryBuilder)(name, faults) for name in wanted}
    lines: list[int] = []
    for numbers, cells in _pieces(text, wanted, faults, lambda share: progress((1 + share) / 2)):
        lines += numbers
        places = [f"line {number}" for number in numbers]
        for name, column in cells.items():
            builders[name].take(column, places)
    return _table(builders, [builder.column() for builder in builders.values()], np.array(lines, np.int64), "line")


def _pieces(
    text: TextTable, wanted: Sequence[str], faults: Faults, progress: Callable[[float], None]
) -> Iterator[tuple[list[int], dict[str, Sequence[str]]]]:
    """Line numbers and the cells of each wanted column, a few thousand rows at a time."""
    places = [text.heads.index(name) for name in wanted]
    rows = text.rows(faults)
    while piece := list(islice(rows, _CSV_ROWS)):
        numbers = [number for number, _ in piece]
        columns = list(zip(*(cells for _, cells in piece), strict=True))
        yield numbers, {name: columns[place] for name, place in zip(wanted, places, strict=True)}
        progress(numbers[-1] / max(1, text.lines))


def _refuse_empty(path: Path, empty: Sequence[str]) -> None:
    if empty:
        raise BadRequest(
            f"{str(path)!r}: column {shown(empty[0])!r} has no values: leave it out with &ignore={empty[0]}"
        )


#: Rows that are converted at a time.
_PARQUET_ROWS = 8_192
#: Rows that any file may have, and those more for each of its bytes.
_MANY_ROWS, _ROWS_OF_A_BYTE = 1_000_000, 10


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The file as pyarrow reads it; whatever goes wrong is one sentence."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadRequest(
            f"{str(path)!r} is Parquet, and pyarrow, which reads it, is not installed: pip install 'velodrome[tables]'"
        ) from None
    try:
        with files.open_regular(path) as stream, parquet.ParquetFile(stream) as file:
            _refuse_packed(path, file.metadata.num_rows)
            yield file
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "out of memory"
        raise BadRequest(f"cannot read {str(path)!r} as Parquet: {shown(why, 300)}") from None


def _refuse_packed(path: Path, rows: int) -> None:
    """Refuse a file of hardly any bytes that stands for more rows than anybody waits for."""
    size = path.stat().st_size
    if rows > _MANY_ROWS + _ROWS_OF_A_BYTE * size:
        raise BadRequest(f"{str(path)!r} has {rows:,} rows in {size:,} bytes, so nearly all of them are equal: make a "
                         "table of those that differ")


def read_parquet(
    path: Path, wanted: Sequence[str], categorical: Collection[str], faults: Faults,
    progress: Callable[[float], None] = lambda share: None,
) -> Table:
    """The wanted columns; rows that cannot be used are faults and left out. `categorical` ones are never numbers."""
    with _parquet(path) as file:
        numeric = [name for name in wanted if _is_number(path, name, file.schema_arrow.field(name).type)
                   and name not in categorical]
        builders = {name: (NumberBuilder if name in numeric else CategoryBuilder)(name, faults) for name in wanted}
        convert: dict[str, Callable[[Any], Any]] = {name: _numbers if name in numeric else _words for name in wanted}
        done, total = 0, max(1, file.metadata.num_rows)
        for batch in file.iter_batches(_PARQUET_ROWS, columns=list(wanted)):
            places = [f"row {done + row + 1}" for row in range(batch.num_rows)]
            for name, builder in builders.items():
                builder.take_typed(convert[name](batch.column(batch.schema.get_field_index(name))), places)
            done += batch.num_rows
            progress(done / total)
    built = [builder.column() for builder in builders.values()]
    _refuse_empty(path, [name for name, (column, _) in zip(builders, built, strict=True) if column.missing.all()])
    return _table(builders, built, np.arange(1, done + 1), "row")


def _table(
    names: Iterable[str], columns: Sequence[tuple[Column, NDArray[np.bool_]]], places: NDArray[np.int64], noun: str
) -> Table:
    """The rows that can be used, according to every column."""
    sound = np.logical_and.reduce([good for _, good in columns])
    return Table(dict(zip(names, (column for column, _ in columns), strict=True)), places, noun).rows(sound)


def _is_number(path: Path, name: str, kind: Any) -> bool:
    """Whether a column of this type holds numbers and not categories; other types are refused."""
    from pyarrow import types

    while types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return True
    if types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind) or types.is_null(kind):
        return False
    raise BadRequest(
        f"{str(path)!r}: column {shown(name)!r} holds {shown(kind)}, and features are numbers, texts or truth values: "
        f"leave it out with &ignore={name}, or convert it"
    )


def _numbers(column: Any) -> Any:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)


def _words(column: Any) -> list[str | None]:
    return [None if cell is None else _word(cell) for cell in column.to_pylist()]


def _word(cell: Any) -> str:
    """As a CSV file would have it: 3 for 3.0, true for True."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
