"""`velodrome examples`: lists and copies the example files that are installed with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli.options import Json

app = typer.Typer(no_args_is_help=True, help="List and copy the example files of the documentation.")


@app.command("list")
def list_examples(json: Json = False) -> None:
    """List the example files: race and job files, models, data.

    Example: `velodrome examples list`
    """
    from velodrome.api import examples
    from velodrome.cli.output import say, say_json

    found = examples.list()
    if json:
        say_json(found)
        return
    width = max(len(example["name"]) for example in found)
    for example in found:
        say(f"{example['name']:<{width}}  {example['about']}")


@app.command("copy")
def copy(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to copy them to; created if it is missing.")
    ] = Path("examples"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ from the examples.")] = False,
    json: Json = False,
) -> None:
    """Copy all example files into a folder, as the tutorial and the how-to pages use them.

    Files that you have changed are not overwritten.

    Examples:

    `velodrome examples copy examples`

    `velodrome race examples/demo.yaml --name demo`
    """
    from velodrome.api import examples
    from velodrome.cli.output import say, say_json

    copied = examples.copy(folder, force=force)
    if json:
        say_json(copied)
        return
    for path in copied["files"]:
        say(path)
