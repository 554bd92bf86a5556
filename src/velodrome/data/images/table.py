"""Photographs named in a table: a column with the image's file and one with its label.

A table cannot make Velodrome read outside the folder it lies in, and links there only if the user says so.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from velodrome import files
from velodrome.data.bad_data import Faults
from velodrome.data.budget import memory_budget
from velodrome.data.images.cached_set import TEST, TRAIN, VALIDATION
from velodrome.data.images.folders import PART_NAMES
from velodrome.data.images.photos import Listing
from velodrome.data.storage.trees import File, FolderTree
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: A column of this name says which part a row belongs to, if no other is named.
PART_COLUMNS = ("part", "split")
_LONGEST_CELL = 1 << 20
#: From this share of whole numbers on, a label that is none is a mistake.
_MOSTLY = 0.9


def read_rows(path: Path, faults: Faults, *, join_last: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with their line numbers; those with wrong quotes, too few or too many cells are faults.

    `join_last` treats surplus cells as unquoted commas of the last column, and quotes as plain characters.
    """
    try:
        with _opened(path) as stream:
            lines = stream.readlines()
        heads, mark, begun = _heads(iter(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _no_table(path, error) from None
    for line, cells in _rows(lines, begun, mark, faults, strict=not join_last):
        if not cells:
            continue
        if len(cells) > len(heads) and join_last:
            faults.add("rows with unquoted commas", f"line {line}", remedy="repaired")
            cells = [*cells[: len(heads) - 1], ",".join(cells[len(heads) - 1 :])]
        if len(cells) != len(heads):
            faults.add(
                "rows with too few or too many cells", f"line {line}", f"{len(cells)} cells instead of {len(heads)}"
            )
            continue
        yield line, dict(zip(heads, cells, strict=True))


def _rows(
    lines: list[str], first: int, mark: str, faults: Faults, *, strict: bool
) -> Iterator[tuple[int, list[str]]]:
    """Cells of each row and the line it begins in; after a row that cannot be parsed, the next line begins one.

    Unless it is strict, an unclosed quote silently swallows everything that follows into its cell.
    """
    while first < len(lines):
        reader = csv.reader((lines[place] for place in range(first, len(lines))), delimiter=mark, strict=strict)
        begun = first
        try:
            for cells in reader:
                yield begun + 1, cells
                begun = first + reader.line_num
            return
        except csv.Error as error:
            faults.add("rows with a quote that is not closed or not doubled", f"line {begun + 1}", str(error))
            first = begun + 1


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
                f"{str(path)!r} has no column {column!r} but {', '.join(map(shown, heads))}: name the right one as "
                f"{path.name}?{option}=COLUMN"
            )


def list_table(path: Path, *, image: str, label: str, part: str | None, follow_links: bool = False) -> Listing:
    """Every row whose image lies in the table's folder and whose label can be read.

    Without a name for it, `part` is a column `part` or `split`; an empty name is none.
    """
    check_columns(path, {"image": image, "label": label, **({"part": part} if part else {})})
    faults = Faults()
    tree = FolderTree(path.parent, follow_links=follow_links)
    folder = path.parent.resolve()
    lines = list(read_rows(path, faults))
    notes: tuple[str, ...] = ()
    if part is None:
        part, notes = _part_column(path, lines, {image, label})
    rows: list[tuple[File, str, int, int]] = []
    labels: dict[str, None] = {}
    for line, cells in lines:
        named, text = cells[image].strip(), cells[label].strip()
        if {"\n", "\r"} & {*named, *text}:
            faults.add("rows with a line break in the image or the label", f"line {line}", text)
            continue
        if not text:
            faults.add("rows without a label", f"line {line}")
            continue
        belongs = PART_NAMES.get(cells[part].strip().lower()) if part else TRAIN
        if belongs is None:
            faults.add("rows of an unknown part", f"line {line}", cells[part or ""])
            continue
        labels[text] = None
        file = _file(folder, named, follow_links=follow_links)
        if isinstance(file, str):
            faults.add("rows whose image is missing or outside the table's folder", f"line {line}", f"{named}: {file}")
            continue
        rows.append((file, text, belongs, line))
    empty = tuple(sorted(labels.keys() - {text for _, text, _, _ in rows}))
    rows = _without_odd_labels(rows, faults)
    names = sorted({text for _, text, _, _ in rows})
    if len(names) == len(rows) > 2:
        raise BadRequest(
            f"{str(path)!r}: every row has a label of its own in column {label!r}; name the column with the class as "
            f"{path.name}?label=COLUMN"
        )
    places = {name: place for place, name in enumerate(names)}
    return Listing(
        tree=tree, files=[file for file, _, _, _ in rows], labels=[places[text] for _, text, _, _ in rows],
        parts=[belongs for _, _, belongs, _ in rows], class_names=names, faults=faults.found(), notes=notes,
        empty=empty,
    )


def _part_column(
    path: Path, lines: list[tuple[int, dict[str, str]]], taken: set[str]
) -> tuple[str | None, tuple[str, ...]]:
    """The column that says which part a row belongs to, where none was named, and a sentence about it."""
    column = next((head for head in PART_COLUMNS if head in columns(path) and head not in taken), None)
    if column is None:
        return None, ()
    words = Counter(cells[column].strip().lower() for _, cells in lines)
    sizes = Counter[int]()
    for word, count in words.items():
        if word in PART_NAMES:
            sizes[PART_NAMES[word]] += count
    if not sizes:
        some = ", ".join(shown(word) for word, _ in words.most_common(3))
        return None, (f"column {column!r} is not used: its values ({some}) are not train, validation or test",)
    return column, (
        f"column {column!r} divides the rows: {sizes[TRAIN]:,} train, {sizes[VALIDATION]:,} validation, "
        f"{sizes[TEST]:,} test; {path.name}?part= ignores it",
    )


def _file(folder: Path, named: str, *, follow_links: bool) -> File | str:
    """The file a row names, or why there is none. A name never leads out of the folder, and a link only if asked to."""
    if not named or "\0" in named:
        return "no name of a file" if named else "no name"
    written, real = Path(os.path.normpath(folder / named)), Path(os.path.realpath(folder / named))
    place = written if follow_links else real
    if not place.is_relative_to(folder):
        linked = written.is_relative_to(folder)
        return "outside, by a link (add ?links=follow to the name to follow it)" if linked else "outside"
    try:
        relative = place.relative_to(folder)
        about = place.stat()
    except OSError as error:
        return error.strerror or "cannot be read"
    return File.of(relative.as_posix(), place, about) if place.is_file() else "no file"


def _without_odd_labels(rows: list[tuple[File, str, int, int]], faults: Faults) -> list[tuple[File, str, int, int]]:
    """Where nearly all labels are whole numbers, the others do not parse."""
    odd = [row for row in rows if not row[1].isdecimal()]
    if not odd or len(odd) > (1 - _MOSTLY) * len(rows):
        return rows
    for _, text, _, line in odd:
        faults.add("labels that are no whole numbers like the others", f"line {line}", text)
    return [row for row in rows if row[1].isdecimal()]
