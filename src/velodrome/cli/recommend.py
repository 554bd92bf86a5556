"""Commands that judge a stored race: `velodrome recommend` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import AccuracyMargin, Json, Runs, Tolerance, relative
from velodrome.cli.output import say, say_json


def recommend_command(
    race: Annotated[str, typer.Argument(metavar="RACE", help="Name of the race.", autocompletion=completion.races)],
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", autocompletion=completion.objectives,
            help="time-to-accuracy, accuracy, throughput or cost; by default time-to-accuracy if the race has a "
            "target, else throughput.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help='Target, such as "accuracy>=0.97". [default: the race\'s]'),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", help="Price of one instance for an hour.")
    ] = None,
    price_of: Annotated[
        str, typer.Option("--price-of", help="What counts as an instance: process or host.",
                          autocompletion=completion.one_of("process", "host"))
    ] = "process",
    between: Annotated[
        str | None,
        typer.Option("--between", metavar="A,B", help="Compare two groups of configurations over everything else: "
                     "strategies, engines or field=value."),
    ] = None,
    tolerance: Tolerance = None,
    accuracy_margin: AccuracyMargin = None,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Recommend a configuration of a race, with the reason and what to try next; "do not distribute this" is a
    possible answer.

    Examples:

    `velodrome recommend first --objective throughput`

    `velodrome recommend first --between single,ddp`

    `velodrome recommend first --objective cost --price-per-hour 0.40 --target "accuracy>=0.97"`
    """
    from velodrome.api.recommend import recommend

    found = recommend(
        race, runs=runs, objective=objective, target=target, price_per_hour=price_per_hour, price_of=price_of,
        tolerance=tolerance, accuracy_margin=accuracy_margin, between=between,
    )
    if json:
        say_json(found)
        return
    for answer in found.get("tasks", [found]):
        if "task" in answer:
            say(f"{answer['task']}:")
        for heading in ("verdict", "why", "next"):
            if answer.get(heading):
                say(f"{heading.capitalize()}: {answer[heading]}")
        for caveat in answer.get("caveats", ()):
            say(f"  - {caveat}")


RaceName = Annotated[str, typer.Argument(metavar="RACE", help="Name of the race.", autocompletion=completion.races)]
ReportTarget = Annotated[
    str | None, typer.Option("--target", help="Target for time-to-accuracy; by default the race's own.")
]


def report_command(
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
    target: ReportTarget = None,
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

    written = report(
        race, runs=runs, out=out, format=form, figures=figures, objective=objective, target=target,
        tolerance=tolerance, accuracy_margin=accuracy_margin,
    )
    if json:
        say_json(written)
    else:
        say(relative(written["report"]))
