"""`velodrome data show`: a data set as a contact sheet and as counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror
from velodrome.cli.output import say, say_json
from velodrome.errors import BadRequest

if TYPE_CHECKING:
    from velodrome.data.base import BadData

BadDataOption = Annotated[
    str,
    typer.Option("--bad-data", help="Whether unusable examples are left out (skip) or an error (fail).",
                 autocompletion=completion.field("bad_data")),
]
#: The terminal shows at most this many classes, the largest ones, and the sum of the others.
_MOST_ROWS = 40
#: Characters of a word of a text.
_LONGEST_WORD = 40


def checked(word: str) -> BadData:
    if word == "skip":
        return "skip"
    if word == "fail":
        return "fail"
    raise BadRequest(f"--bad-data {word!r}: choose skip or fail")


def command(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the data set, as for --dataset; also your own data.",
                       autocompletion=completion.field("dataset")),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="PNG file to write; by default NAME.png.")] = None,
    columns: Annotated[int, typer.Option("--columns", help="Examples of each class.", min=1, max=50)] = 12,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the validation and test splits.")] = 1,
    validation: Annotated[float, typer.Option("--validation", help="Fraction held out for validation.")] = 0.1,
    bad_data: BadDataOption = "fail",
    mirror: Mirror = None,
    json: Json = False,
) -> None:
    """Draw a contact sheet of a data set, and count its classes.

    For a text, count the words and show the most frequent ones. For arrays and tables, show what they hold and what
    was done to each column.

    Examples:

    `velodrome data show fashion-mnist --out fashion.png`

    `velodrome data show path:/data/photos --bad-data skip`

    `velodrome data show 'path:houses.csv?target=price'`
    """
    from velodrome.api import datasets
    from velodrome.cli.console import JobProgress

    progress = JobProgress()
    try:
        found = datasets.show(
            name, out=out, columns=columns, seed=seed, validation=validation, bad_data=checked(bad_data),
            mirror=mirror, on_download=progress.data,
        )
    finally:
        progress.end()
    if json:
        say_json(found)
    elif "vocabulary" in found:
        say(_text_summary(found))
    elif "inputs" in found:
        _print_arrays(found)
    else:
        _print_counts(found)


def _print_counts(found: dict[str, Any]) -> None:
    from rich.table import Table

    from velodrome.cli.safe_console import SafeConsole
    from velodrome.cli.tables import print_table
    from velodrome.printable import shown

    table = Table()
    table.add_column("class", overflow="fold")
    for part in ("train", "validation", "test"):
        table.add_column(part, justify="right")
    rows, parts = found["counts"], ("train", "validation", "test")
    by_size = sorted(range(len(rows)), key=lambda place: -rows[place]["train"])
    for place in sorted(by_size[:_MOST_ROWS]):
        table.add_row(shown(rows[place]["class"]), *(f"{rows[place][part]:,}" for part in parts))
    if smaller := [rows[place] for place in by_size[_MOST_ROWS:]]:
        sums = (sum(row[part] for row in smaller) for part in parts)
        table.add_row(f"{len(smaller):,} more classes, listed by --json", *(f"{count:,}" for count in sums))
    table.add_section()
    table.add_row(f"{len(rows):,} classes", *(f"{found[part]:,}" for part in parts))
    console = SafeConsole(markup=False)
    print_table(console, table)
    for note in found["notes"]:
        console.print(note, soft_wrap=True)
    console.print(f"the contact sheet is {found['sheet']}", soft_wrap=True)


def _print_arrays(found: dict[str, Any]) -> None:
    from rich.table import Table

    from velodrome.cli.safe_console import SafeConsole
    from velodrome.cli.tables import print_table
    from velodrome.printable import shown

    console = SafeConsole(markup=False)
    console.print(f"{found['name']}: {found['train']:,} examples to train on, {found['validation']:,} for validation, "
                  f"{found['test']:,} for test; {found['task']}", soft_wrap=True)
    for side in ("inputs", "targets"):
        held = ", ".join(f"{shown(one['name'])} {'×'.join(map(str, one['shape'])) or '1'} {one['dtype']}"
                         for one in found[side])
        console.print(f"{side}: {held}", soft_wrap=True)
    if found["columns"]:
        table = Table()
        for head in ("column", "encoded as", "mean", "deviation", "missing"):
            table.add_column(head, overflow="fold", justify="left" if head in ("column", "encoded as") else "right")
        missing = found["columns"]["missing"]
        every = [*found["columns"]["features"], *found["columns"]["targets"]]
        for column in every[:_MOST_ROWS]:
            numbers = [f"{column[one]:.6g}" if one in column else "" for one in ("mean", "deviation")]
            table.add_row(shown(column["name"]), _encoding(column), *numbers, f"{missing.get(column['name'], 0):,}")
        if len(every) > _MOST_ROWS:
            table.add_row(f"{len(every) - _MOST_ROWS:,} more columns, which --json lists", "", "", "", "")
        print_table(console, table)
    for note in found["notes"]:
        console.print(note, soft_wrap=True)


def _encoding(column: dict[str, Any]) -> str:
    """`number`, or how categories are encoded and the first of them."""
    from velodrome.printable import shown

    if column["kind"] == "number":
        return "number"
    names = column["categories"]
    some = ", ".join(shown(name, _LONGEST_WORD) for name in names[:4]) + (", …" if len(names) > 4 else "")
    return f"{len(names):,} categories, {column['how']}: {some}"


def _text_summary(found: dict[str, Any]) -> str:
    from velodrome.printable import shown

    frequent = ", ".join(f"{shown(word['word'], _LONGEST_WORD)} {word['count']:,}" for word in found["most_frequent"])
    begins = " ".join(shown(word, _LONGEST_WORD) for word in found["begins"].split(" "))
    return "\n".join([
        f"{found['name']}: {found['train']:,} words to train on, {found['validation']:,} for validation, "
        f"{found['test']:,} for test, a vocabulary of {found['vocabulary']:,}",
        f"most frequent: {frequent}", f"begins: {begins} …", *found["notes"],
    ])
