"""CSV, TSV and Parquet files as tables: what of one is asked for, and its columns.

Text is read twice, to learn which columns are numbers and then to keep them. Parquet is read through pyarrow, which
only this module imports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.data import delimited
from velodrome.data.arrays import np
from velodrome.data.base import Faults, WrongData
from velodrome.data.delimited import TextTable
from velodrome.data.split import part_column
from velodrome.data.tables.columns import MOST_COLUMNS, CategoryBuilder, NumberBuilder, Table, Tally
from velodrome.data.tables.encoding import How
from velodrome.errors import BadRequest
from velodrome.machine import process_memory
from velodrome.printable import bytes_text, shown


@dataclass(frozen=True)
class Request:
    """The columns of a table by what they are for."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    #: The column that divides the rows; None if they are drawn.
    part: str | None
    #: Whether the column of parts was named, so that its values must be parts.
    part_named: bool
    #: Columns whose numbers are only names.
    categorical: tuple[str, ...]
    how: How
    #: `number` or `class`; None if the values of the target decide.
    predict: str | None
    #: Whether targets of numbers are standardised as features are.
    scale_targets: bool
    #: What was decided without being asked for, as sentences.
    notes: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every column that is read."""
        return (*self.features, *self.targets, *((self.part,) if self.part else ()))


def heads_of(path: Path) -> list[str]:
    """The names of a table's columns, as its header says."""
    names = heads(path) if path.suffix.lower() in (".parquet", ".pq") else delimited.columns(path)
    if len(names) > MOST_COLUMNS:
        raise BadRequest(
            f"{str(path)!r} has {len(names):,} columns, and at most {MOST_COLUMNS:,} are read: make a table of those "
            "you need"
        )
    return names


def request_of(path: Path, options: Mapping[str, str]) -> Request:
    """The request that the options of a data set's name make; columns that are not there are refused."""
    heads = heads_of(path)
    twice = [head for head, count in Counter(heads).items() if count > 1 and head]
    if twice:
        raise BadRequest(f"{str(path)!r} has two columns {shown(twice[0])!r}: rename one")
    targets = _columns_named(path, heads, "target", options.get("target", ""))
    if not targets:
        raise WrongData(f"name the column to predict as {path.name}?target=COLUMN")
    ignored = _columns_named(path, heads, "ignore", options.get("ignore", ""))
    part = _part(path, heads, options, targets, ignored)
    notes = []
    if "features" in options:
        features = _columns_named(path, heads, "features", options["features"])
    else:
        features = tuple(head for head in heads if head and head not in (*targets, *ignored, part))
        if "" in heads:
            notes.append("a column without a name is left out")
    for column in features:
        if column in targets or column == part:
            what = "to predict" if column in targets else "of parts"
            raise WrongData(f"column {column!r} is the one {what}, and cannot be a feature too")
        if column in ignored:
            raise WrongData(f"column {column!r} is both in features and in ignore")
    if not features:
        raise WrongData("no column is left as a feature; name some as &features=COLUMN,COLUMN")
    return Request(
        targets=targets, features=features, part=part, part_named=bool(options.get("part")),
        categorical=_columns_named(path, heads, "categorical", options.get("categorical", "")),
        how="index" if _chosen(options, "categories", ("onehot", "index")) == "index" else "onehot",
        predict=_chosen(options, "predict", ("number", "class")),
        scale_targets=_chosen(options, "scale-target", ("yes", "no")) != "no", notes=tuple(notes),
    )


def _columns_named(path: Path, heads: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """Names separated by commas; one whose own name has a comma is found by it."""
    names = [text] if text in heads else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in heads:
            some = ", ".join(map(shown, heads[:20])) + (f" and {len(heads) - 20:,} more" if len(heads) > 20 else "")
            raise BadRequest(
                f"{str(path)!r} has no column {name!r} but {some}: name the right one as {path.name}?{option}=COLUMN"
            )
    return tuple(dict.fromkeys(names))


def _part(
    path: Path, heads: Sequence[str], options: Mapping[str, str], targets: Sequence[str], ignored: Sequence[str]
) -> str | None:
    if "part" in options:
        named = _columns_named(path, heads, "part", options["part"])
        if len(named) > 1:
            raise BadRequest(f"{str(path)!r}: part={options['part']!r} names several columns; one divides the rows")
        return named[0] if named else None
    taken = {*targets, *ignored, *_columns_named(path, heads, "features", options.get("features", ""))}
    return part_column(heads, taken)


def _chosen(options: Mapping[str, str], option: str, words: tuple[str, ...]) -> str | None:
    word = options.get(option)
    if word is not None and word not in words:
        raise WrongData(f"{option} {word!r}; choose {' or '.join(words)}")
    return word


#: Bytes of memory for a cell while a Parquet file is read: as a number, and in the array that is stored.
_EACH = 24


def read_table(path: Path, request: Request, faults: Faults, progress: Callable[[float], None]) -> Table:
    """The columns that are asked for; rows that cannot be used are faults and left out."""
    named = (*request.categorical, *((request.part,) if request.part else ()))
    if path.suffix.lower() in (".parquet", ".pq"):
        needed, free = rows_of(path) * len(request.wanted) * _EACH, process_memory()
        if needed > free:
            raise WrongData(
                f"it takes {bytes_text(needed)} of memory to be read, and {bytes_text(free)} are free: "
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
def _opened(path: Path) -> Iterator[Any]:
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


def heads(path: Path) -> list[str]:
    """The names of the columns."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def rows_of(path: Path) -> int:
    """How many rows its header promises."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def read_parquet(
    path: Path, wanted: Sequence[str], categorical: Collection[str], faults: Faults,
    progress: Callable[[float], None] = lambda share: None,
) -> Table:
    """The wanted columns; rows that cannot be used are faults and left out. `categorical` ones are never numbers."""
    with _opened(path) as file:
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
    built = {name: builder.column() for name, builder in builders.items()}
    for name, (column, _) in built.items():
        if column.missing.all():
            raise BadRequest(f"{str(path)!r}: column {shown(name)!r} has no values: leave it out with &ignore={name}")
    sound = np.logical_and.reduce([good for _, good in built.values()])
    table = Table({name: column for name, (column, _) in built.items()}, np.arange(1, done + 1), "row")
    return table.rows(sound)


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
