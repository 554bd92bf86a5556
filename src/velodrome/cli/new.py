"""Commands that write files to begin with: `velodrome new` and `examples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import velodrome
from velodrome.cli import completion
from velodrome.cli.options import Json
from velodrome.cli.output import say, say_json


def new_command(
    kind: Annotated[
        str, typer.Argument(metavar="model|task|data|script", help="What to write.", autocompletion=completion.starters)
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; by default my_model.py, my_data.py, ….")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="The framework it is for; by default the one that is installed.",
                     autocompletion=completion.field("engine")),
    ] = None,
    json: Json = False,
) -> None:
    """Write a commented starter file for a model, a task, data or a script of yours.

    The file trains as it is: the command for it is printed, and is also at the top of the file. An existing file is
    never overwritten.

    Examples:

    `velodrome new model`

    `velodrome new task my_task.py --engine tensorflow`
    """
    written = velodrome.examples.new(kind, file, engine=engine)
    if json:
        say_json(written)
        return
    say(f"wrote {written['file']}; train it with\n\n  {written['command']}")


examples_app = typer.Typer(no_args_is_help=True, help="List and copy the example files of the documentation.")


@examples_app.command("list")
def list_examples(json: Json = False) -> None:
    """List the example files: race and job files, models, data.

    Example: `velodrome examples list`
    """
    listed = velodrome.examples.list()
    if json:
        say_json(listed)
        return
    width = max(len(example["name"]) for example in listed)
    for example in listed:
        say(f"{example['name']:<{width}}  {example['about']}")


@examples_app.command("copy")
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
    copied = velodrome.examples.copy(folder, force=force)
    if json:
        say_json(copied)
        return
    for path in copied["files"]:
        say(path)
