"""`velodrome recommend`: which configuration of a race to use, in three lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli.options import Json, Runs
from velodrome.errors import BadRequest


def checked_target(text: str | None) -> str | None:
    """A target that can be read, or `BadRequest`."""
    from velodrome.spec.job import Target

    if text is not None:
        try:
            Target.parse(text)
        except ValueError as error:
            raise BadRequest(f"--target: {error}") from None
    return text


def command(
    race: Annotated[str, typer.Argument(metavar="RACE", help="Name of the race.")],
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="time-to-accuracy, accuracy, throughput or cost; time-to-accuracy if the race has a target, else "
            "throughput.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help='As "accuracy>=0.97"; time-to-accuracy takes the race\'s own unless said.'),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", help="What one instance costs for an hour.")
    ] = None,
    price_of: Annotated[
        str, typer.Option("--price-of", help="What an instance is: each process of a run, or each host.")
    ] = "process",
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Say which configuration to use, why, and what to try next; "do not distribute this" is a possible answer.

    Examples:

    `velodrome recommend first --objective throughput`

    `velodrome recommend first --objective cost --price-per-hour 0.40 --target "accuracy>=0.97"`
    """
    import json as json_module

    from velodrome.analysis.compare import compare, tasks_of
    from velodrome.analysis.objective import Price, objective_of, target_of
    from velodrome.analysis.recommend import recommend
    from velodrome.reporting.load import load_race
    from velodrome.spec.job import Target

    if price_per_hour is not None and not 0 < price_per_hour < float("inf"):
        raise BadRequest(f"--price-per-hour '{price_per_hour:g}': a price is more than nothing")
    if price_of not in ("process", "host"):
        raise BadRequest(f"--price-of {price_of!r} is unknown: choose process or host")
    record = load_race(runs, race)
    chosen = objective_of(objective, checked_target(target), record.target)
    wanted = target_of(chosen, target, record.target)
    rows = compare(record.results, Target.parse(wanted) if wanted else None)
    price = Price(price_per_hour, "host" if price_of == "host" else "process")
    answers = {
        task: recommend(members, chosen, wanted, price, failed=record.failed_among(members))
        for task, members in tasks_of(rows).items()
    }
    if json:
        if list(answers) == [""]:
            print(json_module.dumps({"race": record.name, **answers[""].as_json()}))
        else:
            tasks = [{"task": task, **answer.as_json()} for task, answer in answers.items()]
            print(json_module.dumps({"race": record.name, "tasks": tasks}))
        return
    for task, answer in answers.items():
        if task:
            print(f"{task}:")
        for line in answer.lines:
            print(line)
