"""`velodrome data`: the data sets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from velodrome.cli.options import Json

app = typer.Typer(no_args_is_help=True, help="List data sets and bring them to this machine.")


@app.command("list")
def list_data(json: Json = False) -> None:
    """List every data set with its size, classes, shape and licence.

    Example: `velodrome data list`
    """
    import json as json_module

    from velodrome.data import catalogue

    found = [catalogue.describe(name) for name in catalogue.names()]
    if json:
        print(json_module.dumps([asdict(about) for about in found]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("name", "what it is", "train / validation / test", "shape", "classes", "licence"):
        table.add_column(heading, overflow="fold")
    for about in found:
        counts = f"{about.train:,} / {about.validation:,} / {about.test:,}"
        shape = "×".join(map(str, about.input_shape))
        table.add_row(about.name, about.title, counts, shape, str(about.classes), about.licence)
    Console(highlight=False).print(table)


@app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set.")], json: Json = False
) -> None:
    """Bring a data set to this machine and check it, so that training never waits for a network.

    Example: `velodrome data prepare fashion-mnist`
    """
    import json as json_module

    from velodrome.cli.console import JobProgress
    from velodrome.data import catalogue

    progress = JobProgress()
    try:
        catalogue.prepare(name, progress.data)
    finally:
        progress.end()
    print(json_module.dumps({"name": name, "ready": True}) if json else f"{name} is ready")
