"""`velodrome race`: many jobs against each other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli.options import Json, Runs, with_job_options

RaceFile = Annotated[Path | None, typer.Argument(help="YAML file with job, vary and repeat.", metavar="FILE")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the race; made from the time unless said.")]
Vary = Annotated[list[str] | None, typer.Option("--vary", help="A field and its values, as workers=1,2; repeat it.")]
Repeat = Annotated[int | None, typer.Option("--repeat", help="How often each configuration runs. [default: 1]")]


@with_job_options
def command(
    file: RaceFile = None, vary: Vary = None, repeat: Repeat = None, name: Name = None, runs: Runs = Path("runs"),
    json: Json = False, *, fields: dict[str, Any],
) -> None:
    """Race strategies, engines, batch and cluster sizes against each other; compare them and say which to use.

    The same command again runs only what is missing.

    Examples:

    `velodrome race --dataset digits --vary entry=tensorflow/parameter-server:1,torch/ddp --vary workers=1,2`

    `velodrome race race.yaml --name first`
    """
    import json as json_module
    import sys

    from rich.console import Console

    from velodrome.analysis.compare import compare, verdict
    from velodrome.cli.compare import comparison
    from velodrome.cli.console import JobProgress, error_console, show_failure
    from velodrome.cli.options import parse_model_args
    from velodrome.report.figures import race_figure
    from velodrome.run.execute import JobFailed
    from velodrome.run.race import RaceFolder, Step, check, run_race
    from velodrome.spec.race import Entry, parse_race, parse_vary
    from velodrome.spec.read import read_yaml

    content = read_yaml(file) if file is not None else {}
    if "model_args" in fields:
        fields["model_args"] = parse_model_args(fields["model_args"])
    content["job"] = {**(content.get("job") or {}), **fields}
    content["vary"] = {**(content.get("vary") or {}), **parse_vary(vary or [])}
    if repeat is not None:
        content["repeat"] = repeat
    race = parse_race(content)
    entries = check(race)
    folder = RaceFolder(runs, name or f"race-{time.strftime('%y%m%d-%H%M%S')}")
    folder.begin(race)
    jobs = "1 job" if len(entries) == 1 else f"{len(entries)} jobs"
    error_console.print(f"[bold]{folder.path.name}[/bold]: {jobs} in {folder.path}", soft_wrap=True)

    shown: list[JobProgress] = []

    def show(step: Step) -> dict[str, Any]:
        if shown:
            shown.pop().end()
        job = step.entry.job
        progress = JobProgress(f"{step.number}/{step.of} {job.engine}/{job.strategy} {job.workers} w")
        shown.append(progress)
        return {"listener": progress.event, "on_start": progress.begin, "progress": progress.data}

    failures: list[Entry] = []

    def failed(entry: Entry, error: JobFailed) -> None:
        shown.pop().end()
        failures.append(entry)
        show_failure(error)
        print(f"velodrome: {entry.name}: {error}", file=sys.stderr)

    try:
        results = run_race(folder, entries, show, failed)
    finally:
        while shown:
            shown.pop().end()
    rows = compare(results)
    picture = race_figure(rows, results, folder.path / "race.png", _title(entries)) if rows else None
    if json:
        print(json_module.dumps({
            "race": folder.path.name, "path": str(folder.path.resolve()), "rows": [vars(row) for row in rows],
            "failed": [entry.name for entry in failures], "figure": str(picture.resolve()) if picture else None,
            "verdict": verdict(rows),
        }))
    else:
        console = Console(highlight=False)
        if rows:
            console.print(comparison(rows, console.width))
        if picture:
            console.print(f"Plot: {picture}", soft_wrap=True)
        console.print(verdict(rows), soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _title(entries: list[Any]) -> str:
    jobs = [entry.job for entry in entries]
    models = ", ".join(dict.fromkeys(job.model for job in jobs))
    data = ", ".join(dict.fromkeys(job.dataset for job in jobs))
    batches = ", ".join(dict.fromkeys(str(job.batch_size) for job in jobs))
    return f"{models} on {data}, {jobs[0].epochs} epochs, batch {batches}"
