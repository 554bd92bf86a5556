"""`velodrome report`: a race as a page, or as tables for a thesis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import AccuracyMargin, Json, Runs, Tolerance
from velodrome.cli.output import say, say_json

RaceName = Annotated[str, typer.Argument(metavar="RACE", help="Name of the race.", autocompletion=completion.races)]
Target = Annotated[
    str | None, typer.Option("--target", help="Target for time-to-accuracy; by default the race's own.")
]


def command(
    race: RaceName,
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option("--out", help="File to write; by default in the race's folder.")] = None,
    form: Annotated[
        str, typer.Option("--format", help="html, markdown, csv or latex.", autocompletion=completion.report_formats)
    ] = "html",
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for every figure as SVG, PNG and PDF.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", help="What decides the verdict: time-to-accuracy, accuracy, throughput or cost.",
                     autocompletion=completion.objectives),
    ] = None,
    target: Target = None,
    tolerance: Tolerance = None,
    accuracy_margin: AccuracyMargin = None,
    json: Json = False,
) -> None:
    """Write a report of a race: verdict, figures and tables as one self-contained page, or the tables alone.

    Prints the path of the file it wrote.

    Examples:

    `velodrome report first`

    `velodrome report first --format latex --out tables.tex --figures figures`
    """
    from velodrome.api.report import report
    from velodrome.cli.options import relative

    written = report(
        race, runs=runs, out=out, format=form, figures=figures, objective=objective, target=target,
        tolerance=tolerance, accuracy_margin=accuracy_margin,
    )
    if json:
        say_json(written)
    else:
        say(relative(written["report"]))
