"""Tables as text: CSV and TSV files read row by row, with limits on what a hostile file could make large."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from velodrome import files
from velodrome.data.base import Faults, memory_budget
from velodrome.errors import BadRequest, shown

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
            raise BadRequest(
                f"{str(path)!r} has no column {column!r} but {', '.join(map(shown, heads[:20]))}"
                + (f" and {len(heads) - 20:,} more" if len(heads) > 20 else "")
                + f": name the right one as {path.name}?{option}=COLUMN"
                + (f", or the column to predict as {path.name}?target=COLUMN" if option == "image" else "")
            )
