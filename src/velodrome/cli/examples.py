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
    import json as json_module

    from velodrome.api import examples

    found = examples.list()
    if json:
        print(json_module.dumps(found))
        return
    width = max(len(example["name"]) for example in found)
    for example in found:
        print(f"{example['name']:<{width}}  {example['about']}")


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
    import json as json_module

    from velodrome.api import examples

    copied = examples.copy(folder, force=force)
    if json:
        print(json_module.dumps(copied))
        return
    for path in copied["files"]:
        print(path)
