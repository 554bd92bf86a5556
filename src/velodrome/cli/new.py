"""`velodrome new`: writes a starter file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json


def command(
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
    from velodrome.api.new import new
    from velodrome.cli.output import say, say_json

    written = new(kind, file, engine=engine)
    if json:
        say_json(written)
        return
    say(f"{written['file']} is written; train it with\n\n  {written['command']}")
