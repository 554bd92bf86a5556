"""`velodrome data verify`: whether stored files still match their checksums."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from velodrome.cli.options import Json


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set, as for --dataset.")],
    json: Json = False,
) -> None:
    """Verify the stored files of a data set against their checksums.

    Exit code 1 if anything is damaged or missing; `velodrome data prepare NAME` repairs it.

    Example: `velodrome data verify mnist`
    """
    import json as json_module

    from velodrome.data import catalogue

    checked = catalogue.verify(name)
    whole = all(file.state == "ok" for file in checked)
    if json:
        print(json_module.dumps({"name": name, "ok": whole, "files": [asdict(file) for file in checked]}))
    else:
        for file in checked:
            print(f"{file.state:8}{file.file}{f'  {file.detail}' if file.detail else ''}")
        if not checked:
            print(f"nothing is stored of {name}")
        elif not whole:
            print(f"repair it with: velodrome data prepare {name}")
    if not whole:
        raise typer.Exit(1)
