"""Commands that run a race and judge it: `velodrome race`, `recommend` and `report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import velodrome
from velodrome.cli import completion
from velodrome.cli.options import (
    RACE,
    AccuracyMargin,
    JobMirror,
    Json,
    On,
    Place,
    RaceArtifacts,
    Runs,
    Tolerance,
    TrustCode,
    asking,
    relative,
    tell_code,
    where,
    with_job_options,
)
from velodrome.cli.output import say, say_json
from velodrome.errors import BadRequest

RaceFile = Annotated[Path | None, typer.Argument(help="YAML file with job, vary and repeat.", metavar="FILE")]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the race; by default the file's name, or one made from the fields."),
]
Vary = Annotated[
    list[str] | None,
    typer.Option("--vary", help="A field and its values, such as workers=1,2; repeat it for more.",
                 rich_help_panel=RACE,
                 autocompletion=completion.vary),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and its expected duration, and exit.", rich_help_panel=RACE)
]
Measure = Annotated[
    bool | None,
    typer.Option("--measure/--no-measure",
        help="Train each model that has not run here yet for one second, to estimate how long the race takes. "
             "[default: if a guess may be far off and this takes less than 10 s]",
                 rich_help_panel=RACE, show_default=False),
]
SkipUnavailable = Annotated[
    bool,
    typer.Option("--skip-unavailable", help="Leave out jobs for which this machine lacks a package, a device or "
                 "memory, instead of refusing the race.", rich_help_panel=RACE),
]
Warm = Annotated[
    bool,
    typer.Option("--warm/--cold", help="Fork processes from one that has already imported the engine, or start a new "
                                       "interpreter for each.", rich_help_panel=RACE),
]

Parallel = Annotated[
    str,
    typer.Option("--parallel", metavar="N", help="Jobs that run at the same time, each on hosts of its own: auto for "
                 "as many as the cluster has room for; on one machine that is one.", rich_help_panel=RACE,
                 autocompletion=completion.one_of("auto", "1", "2", "4")),
]


def parallel_of(text: str) -> int | None:
    """The number of `--parallel`, None for `auto`."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:4]) <= 999:
        raise BadRequest(f"--parallel {text!r}: give auto, or a number of jobs from 1 to 999")
    return int(text)


@with_job_options
def race_command(
    file: RaceFile = None, vary: Vary = None, name: Name = None, runs: Runs = Path("runs"), dry_run: DryRun = False,
    measure: Measure = None, skip_unavailable: SkipUnavailable = False, on: On = None, place: Place = None,
    warm: Warm = True, parallel: Parallel = "auto", mirror: JobMirror = None, artifacts: RaceArtifacts = None,
    trust_code: TrustCode = None, json: Json = False, *, race_fields: dict[str, Any], fields: dict[str, Any],
) -> None:
    """Race strategies, engines, batch and cluster sizes against each other, compare them and recommend one.

    Each repetition runs every configuration once, in a new random order. A job that fails is reported and the others
    run. The same command again runs only what is missing; with a larger --repeat it adds repetitions. Where something
    is not installed, a race on a terminal asks whether to run the rest.

    With --until-sure it repeats until the best configuration is known, or the best are tied, and stops
    running configurations that are clearly worse. With nothing to vary, every strategy that can train the model here
    takes part, with one worker and with a worker for each core, until one is best or 15 minutes are over.

    Examples:

    `velodrome race --dataset digits --model dense-300-100`

    `velodrome race --dataset digits --vary batch-size=32,128,512 --until-sure --budget 20m`

    `velodrome race --dataset digits --vary entry=tensorflow/parameter-server:1,torch/ddp --vary workers=1,2`

    `velodrome race --script train.py --vary script-args="--lr 0.1","--lr 0.01" --vary workers=1,2`

    `velodrome race --script train.py --script-args "--batch-size {64/workers}" --vary workers=1,2`

    `velodrome race race.yaml --name first --repeat 3`

    `velodrome race race.yaml --dry-run`
    """
    from velodrome.api.race import FinishedRace, run_race
    from velodrome.cli.race_output import TerminalRace, show_race
    from velodrome.job.race import parse_vary
    from velodrome.races.request import read_request

    at_once, varied = parallel_of(parallel), parse_vary(vary or [])
    asked = asking(lambda names: read_request(
        file, fields, varied, race_fields, name=name, runs=runs, trust_code=names, on=on, warm=warm, parallel=at_once,
        dry_run=dry_run, measure=measure, skip_unavailable=skip_unavailable, mirror=mirror,
        artifacts=artifacts,
    ), trust_code)
    tell_code(str(file), asked.codes)
    shared = asked.race.job.get("on")
    target = where(on or (shared if isinstance(shared, str) else None), place)
    if on is not None or place:
        asked = replace(asked, on=target)
    finished = run_race(asked, TerminalRace(live=not target.launcher.interactive, asks=not dry_run))
    if json:
        say_json(finished.as_json())
    elif isinstance(finished, FinishedRace):
        show_race(finished)
        if finished.artifacts is not None:
            say(f"its runs are at {finished.artifacts}/…: `velodrome serve` takes their addresses")
    if isinstance(finished, FinishedRace) and finished.failures:
        raise typer.Exit(1)


RaceName = Annotated[str, typer.Argument(metavar="RACE", help="Name of the race.", autocompletion=completion.races)]
Objective = Annotated[
    str | None,
    typer.Option("--objective", autocompletion=completion.objectives,
                 help="What decides: time-to-accuracy, accuracy, throughput or cost; by default time-to-accuracy if "
                 "the race has a target, else throughput."),
]
Target = Annotated[
    str | None, typer.Option("--target", help='Target, such as "accuracy>=0.97". [default: the race\'s]')
]
PricePerHour = Annotated[float | None, typer.Option("--price-per-hour", help="Price of one instance for an hour.")]
PriceOf = Annotated[
    str, typer.Option("--price-of", help="What counts as an instance: process or host.",
                      autocompletion=completion.one_of("process", "host"))
]
Between = Annotated[
    str | None,
    typer.Option("--between", metavar="A,B", help="Compare two groups of configurations over everything else: "
                 "strategies, engines or field=value."),
]


def recommend_command(
    race: RaceName, objective: Objective = None, target: Target = None, price_per_hour: PricePerHour = None,
    price_of: PriceOf = "process", between: Between = None, tolerance: Tolerance = None,
    accuracy_margin: AccuracyMargin = None, runs: Runs = Path("runs"), json: Json = False,
) -> None:
    """Recommend a configuration of a race, with the reason and what to try next; "do not distribute this" is a
    possible answer.

    Examples:

    `velodrome recommend first --objective throughput`

    `velodrome recommend first --between single,ddp`

    `velodrome recommend first --objective cost --price-per-hour 0.40 --target "accuracy>=0.97"`
    """
    recommended = velodrome.recommend(
        race, runs=runs, objective=objective, target=target, price_per_hour=price_per_hour, price_of=price_of,
        tolerance=tolerance, accuracy_margin=accuracy_margin, between=between,
    )
    if json:
        say_json(recommended)
        return
    for answer in recommended.get("tasks", [recommended]):
        if "task" in answer:
            say(f"{answer['task']}:")
        for heading in ("verdict", "why", "next"):
            if answer.get(heading):
                say(f"{heading.capitalize()}: {answer[heading]}")
        for caveat in answer.get("caveats", ()):
            say(f"  - {caveat}")


Out = Annotated[Path | None, typer.Option("--out", help="File to write; by default in the race's folder.")]
Format = Annotated[
    str, typer.Option("--format", help="html, markdown, csv or latex.", autocompletion=completion.report_formats)
]
Figures = Annotated[Path | None, typer.Option("--figures", help="Folder for every figure as SVG, PNG and PDF.")]


def report_command(
    race: RaceName, runs: Runs = Path("runs"), out: Out = None, form: Format = "html", figures: Figures = None,
    objective: Objective = None, target: Target = None, tolerance: Tolerance = None,
    accuracy_margin: AccuracyMargin = None, json: Json = False,
) -> None:
    """Write a report of a race: verdict, figures and tables as one self-contained page, or the tables alone.

    Prints the path of the file it wrote.

    Examples:

    `velodrome report first`

    `velodrome report first --format latex --out tables.tex --figures figures`
    """
    written = velodrome.report(
        race, runs=runs, out=out, format=form, figures=figures, objective=objective, target=target,
        tolerance=tolerance, accuracy_margin=accuracy_margin,
    )
    if json:
        say_json(written)
    else:
        say(relative(written["report"]))
