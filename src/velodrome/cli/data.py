"""`velodrome data`: lists, prepares, shows, verifies and shards data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import velodrome
from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror
from velodrome.cli.output import SafeConsole, print_table, say, say_json
from velodrome.errors import BadRequest, bytes_text, shown

if TYPE_CHECKING:
    from velodrome.data.base import BadData

data_app = typer.Typer(no_args_is_help=True, help="List, prepare, show, verify and shard data sets.")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the data set, as for --dataset; also your own data.",
                   autocompletion=completion.field("dataset")),
]


@data_app.command("list")
def list_data(json: Json = False) -> None:
    """List every data set with its size, classes, shape and licence, and whether it is on this machine.

    Example: `velodrome data list`
    """
    if json:
        say_json(velodrome.datasets.list())
        return
    console = SafeConsole(markup=False)
    line = "{:<17}{:>25}  {:<10}{:>8}{:>10}  {}"
    console.print(line.format("name", "train / validation / test", "shape", "classes", "size", "here"), style="bold",
                  soft_wrap=True)
    for about, here in velodrome.datasets.descriptions():
        counts = " / ".join(map(_number, (about.train, about.validation, about.test)))
        size = _size(about.bytes)
        where = "?" if here is None else "yes" if here else "no"
        console.print(line.format(about.name, counts, about.shape, _number(about.classes), size, where), soft_wrap=True)
        about_line = f"{about.title}; licence {about.licence}" if here is not None else about.notes[0]
        console.print(f"  {about_line}", style="dim", soft_wrap=True)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e6:,.1f} MB" if count else "embedded"


@data_app.command("prepare")
def prepare(
    name: Name,
    mirror: Mirror = None,
    bad_data: BadDataOption = "fail",
    json: Json = False,
) -> None:
    """Download a data set to this machine, verify and decode it, so that training never waits for it.

    An interrupted download resumes where it stopped. Several of these commands may run at once.

    Example: `velodrome data prepare fashion-mnist --mirror /data/mirror`
    """
    from velodrome.cli.console import data_progress

    with data_progress() as progress:
        prepared = velodrome.datasets.prepare(
            name, mirror=mirror, bad_data=checked(bad_data), on_download=progress.data
        )
    if json:
        say_json(prepared)
    else:
        say("\n".join([*prepared["notes"], f"{name} is ready"]))




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


@data_app.command("show")
def show(
    name: Name,
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
    from velodrome.cli.console import data_progress

    with data_progress() as progress:
        about = velodrome.datasets.show(
            name, out=out, columns=columns, seed=seed, validation=validation, bad_data=checked(bad_data),
            mirror=mirror, on_download=progress.data,
        )
    if json:
        say_json(about)
    elif "vocabulary" in about:
        say(_text_summary(about))
    elif "inputs" in about:
        _print_arrays(about)
    else:
        _print_counts(about)


def _print_counts(about: dict[str, Any]) -> None:
    table = Table()
    table.add_column("class", overflow="fold")
    for part in ("train", "validation", "test"):
        table.add_column(part, justify="right")
    rows, parts = about["counts"], ("train", "validation", "test")
    by_size = sorted(range(len(rows)), key=lambda place: -rows[place]["train"])
    for place in sorted(by_size[:_MOST_ROWS]):
        table.add_row(shown(rows[place]["class"]), *(f"{rows[place][part]:,}" for part in parts))
    if smaller := [rows[place] for place in by_size[_MOST_ROWS:]]:
        sums = (sum(row[part] for row in smaller) for part in parts)
        table.add_row(f"{len(smaller):,} more classes, listed by --json", *(f"{count:,}" for count in sums))
    table.add_section()
    table.add_row(f"{len(rows):,} classes", *(f"{about[part]:,}" for part in parts))
    console = SafeConsole(markup=False)
    print_table(console, table)
    for note in about["notes"]:
        console.print(note, soft_wrap=True)
    console.print(f"the contact sheet is {about['sheet']}", soft_wrap=True)


def _print_arrays(about: dict[str, Any]) -> None:
    console = SafeConsole(markup=False)
    console.print(f"{about['name']}: {about['train']:,} examples to train on, {about['validation']:,} for validation, "
                  f"{about['test']:,} for test; {about['task']}", soft_wrap=True)
    for side in ("inputs", "targets"):
        held = ", ".join(f"{shown(array['name'])} {'×'.join(map(str, array['shape'])) or '1'} {array['dtype']}"
                         for array in about[side])
        console.print(f"{side}: {held}", soft_wrap=True)
    if about["columns"]:
        table = Table()
        for head in ("column", "encoded as", "mean", "deviation", "missing"):
            table.add_column(head, overflow="fold", justify="left" if head in ("column", "encoded as") else "right")
        missing = about["columns"]["missing"]
        every = [*about["columns"]["features"], *about["columns"]["targets"]]
        for column in every[:_MOST_ROWS]:
            numbers = [f"{column[name]:.6g}" if name in column else "" for name in ("mean", "deviation")]
            table.add_row(shown(column["name"]), _encoding(column), *numbers, f"{missing.get(column['name'], 0):,}")
        if len(every) > _MOST_ROWS:
            table.add_row(f"{len(every) - _MOST_ROWS:,} more columns, which --json lists", "", "", "", "")
        print_table(console, table)
    for note in about["notes"]:
        console.print(note, soft_wrap=True)


def _encoding(column: dict[str, Any]) -> str:
    """`number`, or how categories are encoded and the first of them."""
    if column["kind"] == "number":
        return "number"
    names = column["categories"]
    some = ", ".join(shown(name, _LONGEST_WORD) for name in names[:4]) + (", …" if len(names) > 4 else "")
    return f"{len(names):,} categories, {column['how']}: {some}"


def _text_summary(about: dict[str, Any]) -> str:
    frequent = ", ".join(f"{shown(word['word'], _LONGEST_WORD)} {word['count']:,}" for word in about["most_frequent"])
    begins = " ".join(shown(word, _LONGEST_WORD) for word in about["begins"].split(" "))
    return "\n".join([
        f"{about['name']}: {about['train']:,} words to train on, {about['validation']:,} for validation, "
        f"{about['test']:,} for test, a vocabulary of {about['vocabulary']:,}",
        f"most frequent: {frequent}", f"begins: {begins} …", *about["notes"],
    ])


@data_app.command("verify")
def verify(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the data set, as for --dataset.",
                       autocompletion=completion.field("dataset")),
    ],
    json: Json = False,
) -> None:
    """Verify the stored files of a data set against their checksums.

    Exit code 1 if anything is damaged, missing or not stored at all. `velodrome data prepare NAME` repairs what is in
    the cache; damaged shards have to be written again.

    Example: `velodrome data verify mnist`
    """
    verified = velodrome.datasets.verify(name)
    if json:
        say_json(verified)
    else:
        for file in verified["files"]:
            detail = f"  {file['detail']}" if file["detail"] else ""
            say(f"{file['state']:8}{file['file']}{detail}")
        if not verified["files"]:
            say(f"nothing is stored of {name}: {verified['advice']} stores it")
        elif verified["advice"]:
            say(f"repair it with: {verified['advice']}")
    if not verified["ok"]:
        raise typer.Exit(1)


@data_app.command("shard")
def shard(
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="A folder, hdfs://host:port/path, webhdfs://… or "
                                    "s3://bucket/path.")],
    shards: Annotated[
        int, typer.Option("--shards", help="Files of the training part; others in proportion to their size.")
    ] = 16,
    encoding: Annotated[
        str,
        typer.Option("--encoding", help="Images as png, jpeg (loses detail) or raw.",
                     autocompletion=completion.one_of("png", "jpeg", "raw")),
    ] = "png",
    part: Annotated[str, typer.Option("--part", help="Parts to write, separated by commas.")] = "train,validation,test",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the validation split.")] = 1,
    validation: Annotated[float, typer.Option("--validation", help="Fraction of the training set held out for "
                                              "validation.")] = 0.1,
    bad_data: BadDataOption = "fail",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing set.")] = False,
    mirror: Mirror = None,
    json: Json = False,
) -> None:
    """Write a data set as TFRecord files, with an index that holds counts and checksums.

    Examples:

    `velodrome data shard mnist --shards 16 --to hdfs://namenode:9000/data/mnist`

    `velodrome data shard path:/data/photos --bad-data skip --to /data/shards`
    """
    from velodrome.cli.console import data_progress

    with data_progress() as progress:
        written = velodrome.datasets.shard(
            name, to, shards=shards, encoding=encoding, parts=part.split(","), seed=seed, validation=validation,
            bad_data=checked(bad_data), force=force, mirror=mirror, on_download=progress.data,
        )
    if json:
        say_json(written)
        return
    for known, count in written["parts"].items():
        say(f"{known:<10} {count['examples']:>9,} examples in {count['files']:>3} files")
    for note in written["notes"]:
        say(note)
    url = written["url"]
    say(f"{bytes_text(written['bytes'])} at {url}; train from it with --dataset shards:{url}")
