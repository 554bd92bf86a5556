"""`velodrome report`: a race as a page, or as tables for a thesis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli.options import Json, Runs

RaceName = Annotated[str, typer.Argument(metavar="RACE", help="Name of the race.")]
Target = Annotated[
    str | None, typer.Option("--target", help="Target for time-to-accuracy; the race's own unless said.")
]


def command(
    race: RaceName,
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option("--out", help="File to write; beside the runs unless said.")] = None,
    form: Annotated[str, typer.Option("--format", help="html, markdown, csv or latex.")] = "html",
    figures: Annotated[Path | None, typer.Option("--figures", help="Folder for every figure as SVG and PNG.")] = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", help="What the verdict is by: time-to-accuracy, accuracy, throughput or cost."),
    ] = None,
    target: Target = None,
    json: Json = False,
) -> None:
    """Write a race down: verdict, figures and tables on one page that needs nothing else, or the tables alone.

    Prints the path of the file it wrote.

    Examples:

    `velodrome report first`

    `velodrome report first --format latex --out tables.tex --figures figures`
    """
    import json as json_module

    from velodrome.cli.recommend import checked_target
    from velodrome.reporting.document import make_report
    from velodrome.reporting.load import load_race
    from velodrome.reporting.write import write_report

    record = load_race(runs, race)
    report = make_report(record, objective, checked_target(target))
    paths = write_report(report, form, out, figures)
    if json:
        print(json_module.dumps({
            "race": record.name, "report": str(paths[0].resolve()),
            "files": [str(path.resolve()) for path in paths], "recommendations": [
                {"task": answer.task, **answer.recommendation.as_json()} for answer in report.answers
            ],
        }))
    else:
        print(paths[0])
