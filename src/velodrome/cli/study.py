"""`velodrome study`: published studies, run again, ours beside theirs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli.data_show import BadDataOption, checked
from velodrome.cli.options import Json, Runs

if TYPE_CHECKING:
    from velodrome.studies.plan import StudyPlan

app = typer.Typer(no_args_is_help=True, help="Run published studies again and see ours beside theirs.")

StudyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.")]
ScaleOption = Annotated[
    str, typer.Option("--scale", help="smoke (minutes), small (half an hour on two cores) or full, as published.")
]
DataSet = Annotated[
    str | None, typer.Option("--dataset", help="Another data set in place of the published one; it is told.")
]
DataUrl = Annotated[
    str | None,
    typer.Option("--data-url", metavar="URL", help="Read every data set NAME from shards at URL/NAME, as hdfs://…"),
]


@app.command("list")
def list_studies(json: Json = False) -> None:
    """List the published studies that can be run again.

    Example: `velodrome study list`
    """
    import json as json_module

    from velodrome.studies.load import studies

    found = studies().values()
    if json:
        print(json_module.dumps([
            {"name": study.name, "title": study.title, "source": study.source, "machines": study.machines,
             "configurations": len(study.combinations()), "figures": len(study.figures), "claims": len(study.claims)}
            for study in found
        ]))
        return
    for study in found:
        print(f"{study.name:<16} {study.title}")


@app.command("show")
def show(name: StudyName, scale: ScaleOption = "full", json: Json = False) -> None:
    """Show a study: what was published, what would run here at a scale, and what is missing.

    Examples:

    `velodrome study show kouskouras-2022`

    `velodrome study show jaeger-2018 --scale small --json`
    """
    import json as json_module

    from velodrome.cli.study_tables import shown, told_plan
    from velodrome.machine import cores
    from velodrome.studies.load import scale_named, study_named
    from velodrome.studies.outcome import beside
    from velodrome.studies.plan import Choice, plan_study

    study = study_named(name)
    plan = plan_study(study, scale_named(scale), Choice())
    rows = beside(plan, [], cores())
    if json:
        print(json_module.dumps({**_described(plan), "configurations": [row.as_json() for row in rows],
                                 "claims": [claim.model_dump() for claim in study.claims]}))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{study.name}[/bold]: {study.title}", soft_wrap=True)
    console.print(f"Source: {study.source}", soft_wrap=True, markup=False)
    console.print(f"Machines: {study.machines}", soft_wrap=True, markup=False)
    console.print(shown(plan, rows, ours=False))
    for claim in study.claims:
        console.print(f"Published finding: {claim.text}", soft_wrap=True, markup=False)
    for line in told_plan(plan):
        console.print(line, soft_wrap=True, markup=False)


@app.command("run")
def run(
    name: StudyName,
    scale: ScaleOption = "smoke",
    runs: Runs = Path("runs"),
    race_name: Annotated[
        str | None, typer.Option("--name", help="Name of the race; the study's and the scale's unless said.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How often each configuration runs.")] = 1,
    dataset: DataSet = None,
    data_url: DataUrl = None,
    bad_data: BadDataOption = "fail",
    naming: Annotated[
        str | None, typer.Option("--naming", help="What runs are called: plain or published; as the study says.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and stop there.")] = False,
    json: Json = False,
) -> None:
    """Run a study again at a scale and print our figures beside the published ones, with what differs.

    What is not installed or not there is told with the command that adds it, and the rest runs. Jobs that do not fit
    this machine get fewer workers, and that is told too. The same command again runs only what is missing.

    Examples:

    `velodrome study run zipperle-2018`

    `velodrome study run kouskouras-2022 --scale small --data-url hdfs://namenode:9000/data`

    `velodrome study run aws-2023 --dataset fashion-mnist --dry-run`

    `velodrome study run aws-2023 --dataset path:/data/products --bad-data skip`
    """
    from velodrome.cli.console import error_console
    from velodrome.cli.race import plan_in_words, run_on_board
    from velodrome.cli.study_tables import told_plan
    from velodrome.errors import BadRequest, VelodromeError
    from velodrome.run.race import RaceFolder, shuffled
    from velodrome.spec.race import expand
    from velodrome.studies.load import scale_named, study_named
    from velodrome.studies.plan import Choice, fetch_data, glance_at_data, plan_study

    study, size = study_named(name), scale_named(scale)
    if data_url is not None and study.stored is None:
        raise BadRequest(f"--data-url {data_url!r}: {study.name} did not read from stored shards; leave it out")
    choice = Choice(dataset, data_url, repeat, naming, checked(bad_data))
    folder = RaceFolder(runs, race_name or f"{study.name}-{size}")
    written = folder.written()
    plan = plan_study(study, size, choice, look=partial(glance_at_data if dry_run else fetch_data, choice),
                      kept=written.fitted if written else None)
    for line in told_plan(plan):
        error_console.print(line, soft_wrap=True, markup=False)
    if plan.race is None:
        raise VelodromeError(f"nothing of {study.name} can run here yet")
    race = folder.stamped(plan.race)
    entries = shuffled(race, expand(race))  # each was checked when it was fitted to this machine
    expected, words = plan_in_words(folder, entries, warm=True)
    error_console.print(words, soft_wrap=True)
    failed: list[str] = []
    if not dry_run:
        # What was missing at the last time may be there now.
        folder.begin(race, grown=True)
        results = run_on_board(folder, entries, expected, warm=True)
        failed = [result["run"] for result in results if result["status"] != "finished"]
    _conclude(plan, folder.path, failed, ran=not dry_run, as_json=json)
    if failed:
        raise typer.Exit(1)


def _described(plan: StudyPlan) -> dict[str, Any]:
    """What a script wants to know of a study before any number."""
    from velodrome.machine import cores

    return {
        "study": plan.study.name, "scale": plan.scale, "source": plan.study.source,
        "machines": {"published": plan.study.machines, "ours": f"one machine with {cores()} cores"},
        "notes": plan.study.notes, "missing": list(plan.missing), "reductions": list(plan.reductions),
        "left_out": plan.left_out, "data": plan.data,
    }


def _conclude(plan: StudyPlan, folder: Path, failed: list[str], *, ran: bool, as_json: bool) -> None:
    """Ours beside theirs, and what becomes of the published findings."""
    import json as json_module

    from rich.console import Console

    from velodrome.analysis.compare import compare
    from velodrome.cli.study_tables import differences, shown
    from velodrome.machine import cores
    from velodrome.reporting.load import load_race
    from velodrome.studies.outcome import beside, findings

    rows = compare(load_race(folder.parent, folder.name).results) if ran else []
    compared = beside(plan, rows, cores())
    judged = findings(plan, rows, cores()) if ran else []
    if as_json:
        print(json_module.dumps({
            **_described(plan), "race": folder.name, "path": str(folder.resolve()), "failed": failed,
            "configurations": [row.as_json() for row in compared], "claims": [one.as_json() for one in judged],
        }))
        return
    console = Console(highlight=False)
    console.print(shown(plan, compared, ours=ran))
    for line in differences(plan, cores()):
        console.print(line, soft_wrap=True, markup=False)
    for finding in judged:
        console.print(f"“{finding.claim}”: {finding.verdict} ({finding.why})", soft_wrap=True, markup=False)
    if ran:
        console.print(f"`velodrome report {folder.name} --runs {folder.parent}` writes it down", soft_wrap=True)
