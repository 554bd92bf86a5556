"""`velodrome recommend`: which configuration of a race to use, in three lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import AccuracyMargin, Json, Runs, Tolerance
from velodrome.cli.output import say, say_json


def command(
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
