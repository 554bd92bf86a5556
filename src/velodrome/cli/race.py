"""`velodrome race`: many jobs against each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import (
    RACE,
    JobMirror,
    Json,
    On,
    Place,
    Runs,
    TrustCode,
    asking,
    parse_model_args,
    tell_code,
    where,
    with_job_options,
)
from velodrome.cli.output import say_json
from velodrome.errors import BadRequest

RaceFile = Annotated[Path | None, typer.Argument(help="YAML file with job, vary and repeat.", metavar="FILE")]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the race; by default the file's name, or one made from the fields."),
]
Vary = Annotated[
    list[str] | None,
    typer.Option("--vary", help="A field and its values, as workers=1,2; may be repeated.", rich_help_panel=RACE,
                 autocompletion=completion.vary),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and its expected duration, and exit.", rich_help_panel=RACE)
]
Measure = Annotated[
    bool | None,
    typer.Option("--measure/--no-measure", help="Train each model that never ran here for a second, to estimate how "
                 "long the race takes. [default: if a guess may be far off and that takes less than 10 s]",
                 rich_help_panel=RACE, show_default=False),
]
SkipUnavailable = Annotated[
    bool,
    typer.Option("--skip-unavailable", help="Leave out jobs for which this machine lacks a package, a device or "
                 "memory, instead of refusing the race.", rich_help_panel=RACE),
]
Warm = Annotated[
    bool,
    typer.Option("--warm/--cold", help="Fork processes from one that has imported the engine, or start new "
                 "interpreters.", rich_help_panel=RACE),
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
    warm: Warm = True, parallel: Parallel = "auto", mirror: JobMirror = None, trust_code: TrustCode = None,
    json: Json = False, *, race_fields: dict[str, Any], fields: dict[str, Any],
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
    if "model_args" in fields:
        fields = {**fields, "model_args": parse_model_args(fields["model_args"])}
    asked = asking(lambda names: read_request(
        file, fields, varied, race_fields, name=name, runs=runs, trust_code=names, on=on, warm=warm, parallel=at_once,
        dry_run=dry_run, measure=measure, skip_unavailable=skip_unavailable, mirror=mirror,
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
    if isinstance(finished, FinishedRace) and finished.failures:
        raise typer.Exit(1)
