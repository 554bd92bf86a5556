"""`velodrome data verify`: whether stored files still match their checksums."""

from __future__ import annotations

from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json
from velodrome.cli.output import say, say_json


def command(
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
    from velodrome.api import datasets

    found = datasets.verify(name)
    if json:
        say_json(found)
    else:
        for file in found["files"]:
            detail = f"  {file['detail']}" if file["detail"] else ""
            say(f"{file['state']:8}{file['file']}{detail}")
        if not found["files"]:
            say(f"nothing is stored of {name}: {found['advice']} stores it")
        elif found["advice"]:
            say(f"repair it with: {found['advice']}")
    if not found["ok"]:
        raise typer.Exit(1)
