"""`velodrome data`: lists and prepares data sets; showing, verifying and sharding have files of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from velodrome.cli import completion, data_shard, data_show, data_verify
from velodrome.cli.options import Json, Mirror
from velodrome.cli.output import say, say_json

app = typer.Typer(no_args_is_help=True, help="List, prepare, show, verify and shard data sets.")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the data set, as for --dataset; also your own data.",
                   autocompletion=completion.field("dataset")),
]


@app.command("list")
def list_data(json: Json = False) -> None:
    """List every data set with its size, classes, shape and licence, and whether it is on this machine.

    Example: `velodrome data list`
    """
    from velodrome.api import datasets

    if json:
        say_json(datasets.list())
        return
    from velodrome.cli.safe_console import SafeConsole

    console = SafeConsole(markup=False)
    line = "{:<17}{:>25}  {:<10}{:>8}{:>10}  {}"
    console.print(line.format("name", "train / validation / test", "shape", "classes", "size", "here"), style="bold",
                  soft_wrap=True)
    for about, here in datasets.descriptions():
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


@app.command("prepare")
def prepare(
    name: Name,
    mirror: Mirror = None,
    bad_data: data_show.BadDataOption = "fail",
    json: Json = False,
) -> None:
    """Download a data set to this machine, verify and decode it, so that training never waits for it.

    An interrupted download resumes where it stopped. Several of these commands may run at once.

    Example: `velodrome data prepare fashion-mnist --mirror /data/mirror`
    """
    from velodrome.api import datasets
    from velodrome.cli.console import JobProgress

    progress = JobProgress()
    try:
        found = datasets.prepare(
            name, mirror=mirror, bad_data=data_show.checked(bad_data), on_download=progress.data
        )
    finally:
        progress.end()
    if json:
        say_json(found)
    else:
        say("\n".join([*found["notes"], f"{name} is ready"]))


app.command("show")(data_show.command)
app.command("verify")(data_verify.command)
app.command("shard")(data_shard.command)
