"""`velodrome predict`: what a trained model says about files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Runs, TrustCode, asking
from velodrome.printable import LONGEST_LINE, shown


def command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A finished run, RACE/RUN, or the path of its folder.",
                       autocompletion=completion.stored),
    ],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Pictures, .csv tables, .json examples, or texts.")
    ],
    runs: Runs = Path("runs"),
    top: Annotated[int, typer.Option("--top", help="Number of classes to list, the most probable first.")] = 3,
    mirror: Mirror = None,
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Run a trained model on files: pictures, tables or texts.

    The model runs in ONNX Runtime; it is exported first if it was not yet. Of a table every row is answered, of a text
    what follows it.

    Examples:

    `velodrome predict fruits apple.jpg kiwi.jpg`

    `velodrome predict diabetes patients.csv --json`
    """
    from velodrome.api.serving import predict
    from velodrome.cli.output import say, say_json

    found = asking(lambda names: predict(run, files, runs, top=top, mirror=mirror, trust_code=names), trust_code)
    if json:
        say_json(found)
        return
    for row in found["files"]:
        place = f" row {row['row']}" if "row" in row else ""
        say(f"{shown(row['file'], LONGEST_LINE)}{place}: {', '.join(map(_text, row['predictions']))}")


def _text(answer: dict[str, Any]) -> str:
    if "class" in answer:
        return f"{shown(answer['class'])} {100 * answer['probability']:.1f} %"
    return f"{shown(answer['name'])} {answer['value']:.6g}"
