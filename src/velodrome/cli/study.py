"""`velodrome study`: reproduces published studies and prints our figures beside the published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

import velodrome
from velodrome.cli import completion
from velodrome.cli.data import BadDataOption, checked
from velodrome.cli.options import Json, Mirror, On, Place, RaceArtifacts, Runs, TrustCode, command_on, where
from velodrome.cli.output import SafeConsole, print_table, say, say_json
from velodrome.studies.outcome import FigureComparison, quantities_of
from velodrome.studies.plan import StudyPlan
from velodrome.studies.quantities import quantity_named
from velodrome.studies.settings import label_of, size_of
from velodrome.studies.wording import counted, differences, figure_lines, origin_lines, plan_lines

if TYPE_CHECKING:
    from velodrome.studies.results import FinishedStudy

study_app = typer.Typer(no_args_is_help=True, help="Reproduce published studies and compare the results.")

StudyName = Annotated[
    str,
    typer.Argument(metavar="NAME|FILE", help="Name of a study, or your own study file, such as ./my-study.yaml.",
                   autocompletion=completion.studies),
]
ScaleOption = Annotated[
    str,
    typer.Option("--scale", help="smoke (minutes), small (half an hour on two cores) or full, as published.",
                 autocompletion=completion.one_of("smoke", "small", "full")),
]
DataSet = Annotated[
    str | None,
    typer.Option("--dataset", help="Another data set in place of the published one; the output says so.",
                 autocompletion=completion.field("dataset")),
]
DataUrl = Annotated[
    str | None,
    typer.Option("--data-url", metavar="URL",
        help="Read every data set NAME from shards at URL/NAME, such as hdfs://…"),
]
RaceName = Annotated[
    str | None, typer.Option("--name", help="Name of the race; by default the study's and the scale's.")
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Runs of each configuration.")]
Naming = Annotated[
    str | None,
    typer.Option("--naming", help="How runs are named: plain or published; by default as in the study.",
                 autocompletion=completion.one_of("plain", "published")),
]
Implementation = Annotated[
    str | None,
    typer.Option("--implementation", help="Implementation of every strategy that has both: stock (the framework's own "
                 "parts) or velodrome; by default as in the study.",
                 autocompletion=completion.one_of("stock", "velodrome")),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="FIELD=VALUES", help="Run only configurations whose published field has one of "
                 "these values, as workers=1,2; may be given several times."),
]
TestGroup = Annotated[
    int | None,
    typer.Option("--test-group", min=0, max=999, help="Test group of published names: MWM201 is run 1 of group 2."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run, and exit.")]


@study_app.command("list")
def list_studies(json: Json = False) -> None:
    """List the published studies that can be reproduced.

    Example: `velodrome study list`
    """
    rows = velodrome.study.list()
    if json:
        say_json(rows)
        return
    for row in rows:
        say(f"{row['name']:<16} {row['title']}")


@study_app.command("show")
def show(
    name: StudyName, scale: ScaleOption = "full", mirror: Mirror = None, trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Show a study: what was published, where settings come from, what would run here, and what is missing.

    Examples:

    `velodrome study show kouskouras-2022`

    `velodrome study show jaeger-2018 --scale small --json`
    """
    if json:
        say_json(velodrome.study.show(name, scale, mirror=mirror, trust_code=trust_code or ()))
        return
    plan, rows = velodrome.study.planned_rows(name, scale, mirror, trust_code or ())
    study = plan.study
    console = SafeConsole()
    console.print(f"[bold]{study.name}[/bold]: {study.title}", soft_wrap=True)
    console.print(f"Source: {study.source}", soft_wrap=True, markup=False)
    console.print(f"Machines: {study.machines}", soft_wrap=True, markup=False)
    print_table(console, comparison(plan, rows, ours=False))
    for line in (*figure_lines(rows), *origin_lines(plan)):
        console.print(line, soft_wrap=True, markup=False)
    for note in study.notes:
        console.print(f"Note: {note}", soft_wrap=True, markup=False)
    for claim in study.claims:
        console.print(f"Published finding: {claim.text} ({claim.place})", soft_wrap=True, markup=False)
    for line in plan_lines(plan):
        console.print(line, soft_wrap=True, markup=False)


@study_app.command("new")
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, such as my-study.yaml.")],
    json: Json = False,
) -> None:
    """Write a commented study file to begin with: races, published figures, claims and notes.

    The file runs as it is. An existing file is never overwritten.

    Example: `velodrome study new my-study.yaml`
    """
    from velodrome.api.study import new

    path = new(file)
    word = path if "/" in str(path) else f"./{path}"
    if json:
        say_json({"file": str(path.resolve()), "command": f"velodrome study run {word}"})
        return
    say(f"wrote {path}; run it with\n\n  velodrome study run {word}")


@study_app.command("run")
def run(
    name: StudyName, scale: ScaleOption = "smoke", runs: Runs = Path("runs"), race_name: RaceName = None,
    repeat: Repeat = 1, dataset: DataSet = None, data_url: DataUrl = None, bad_data: BadDataOption = "fail",
    naming: Naming = None, test_group: TestGroup = None, implementation: Implementation = None, only: Only = None,
    dry_run: DryRun = False, on: On = None, place: Place = None, mirror: Mirror = None,
    artifacts: RaceArtifacts = None, trust_code: TrustCode = None, json: Json = False,
) -> None:
    """Reproduce a study at a scale and print our figures beside the published ones, with everything that differs.

    What is not installed is reported with the command that adds it, and the rest runs. Jobs that do not fit this
    machine get fewer workers, and that is reported, too; on hosts elsewhere they run as they are or not at all. The
    same command again runs only what is missing.

    Examples:

    `velodrome study run zipperle-2018`

    `velodrome study run kouskouras-2022 --scale small --data-url hdfs://namenode:9000/data`

    `velodrome study run aws-2023 --dataset fashion-mnist --dry-run`

    `velodrome study run aws-2023 --dataset path:/data/products --bad-data skip`

    `velodrome study run jaeger-2018 --scale full --only model=lenet5 --only workers=1 --repeat 3`

    `velodrome study run ./my-study.yaml --repeat 3`
    """
    from velodrome.cli.console import error_console
    from velodrome.cli.race_output import TerminalRace
    from velodrome.job.race import parse_vary
    from velodrome.studies.plan import Choice
    from velodrome.studies.run import StudyRequest, run_study

    def show_plan(plan: StudyPlan) -> None:
        for line in plan_lines(plan):
            error_console.print(line, soft_wrap=True, markup=False)

    target = where(on, place)
    choice = Choice(dataset, data_url, repeat, naming, checked(bad_data), test_group, implementation,
                    parse_vary(only or []))
    asked = StudyRequest(name, scale, choice, runs, race_name, on=target, dry_run=dry_run, mirror=mirror,
                         trust_code=trust_code or (), artifacts=artifacts)
    finished = run_study(asked, TerminalRace(live=not target.launcher.interactive), show_plan)
    if json:
        say_json(finished.as_json())
    else:
        _show(finished)
        if finished.artifacts is not None:
            say(f"its runs are at {finished.artifacts}/…: `velodrome serve` takes their addresses")
    if finished.failed:
        raise typer.Exit(1)


def _show(finished: FinishedStudy) -> None:
    """Published figures and ours, what differs, and what becomes of the published findings."""
    console = SafeConsole()
    print_table(console, comparison(finished.plan, finished.configurations, ours=finished.ran))
    for line in differences(finished.plan):
        console.print(line, soft_wrap=True, markup=False)
    for finding in finished.findings:
        claim = f"“{finding.claim.text}” ({finding.claim.place})"
        console.print(f"{claim}: {finding.sentence}", soft_wrap=True, markup=False)
        for explanation in finding.explanations:
            console.print(f"  What could explain it: {explanation}", soft_wrap=True, markup=False)
    if finished.ran:
        console.print(f"`{command_on('report', finished.folder)}` writes a report of it", soft_wrap=True, markup=False)


def comparison(plan: StudyPlan, rows: Sequence[FigureComparison], *, ours: bool) -> Table:
    """A row for each configuration, published figures above ours, labelled by the fields that differ between rows."""
    names = quantities_of(plan.study) if ours or plan.study.all_figures() else []
    fields = [field for field in _FIELDS if len({_FIELDS[field](row.setting.published) for row in rows}) > 1]
    shared = (_FIELDS[field](rows[0].setting.published) for field in _FIELDS if field not in fields)
    same = ", ".join(filter(None, shared))
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left",
        title=": ".join(filter(None, [plan.study.name, escape(same)]))
        + (f"; ours at scale {plan.scale}" if ours else ""),
    )
    table.add_column("configuration")
    for name in names:
        table.add_column(quantity_named(name).heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    seen: list[object] = []
    without = 0
    for row in rows:
        # No published figures and none of ours: `plan_lines` reports what is missing or reduced.
        if not row.published and ours and (row.setting.missing or row.setting.ours in seen):
            without += 1
            continue
        label = escape(" ".join(filter(None, (_FIELDS[field](row.setting.published) for field in fields))) or same)
        lines = [[f"[bold]{label}[/bold]" + (" (not in the study)" if row.setting.added else ""), *([""] * len(names))]]
        if row.published:
            lines.append(["  published", *(_cell(name, row.published.get(name)) for name in names)])
        if row.setting.missing or (ours and row.setting.ours in seen):
            lines.append([f"  [yellow]{_state(row, seen)}[/yellow]", *([""] * len(names))])
        elif ours:
            lines.append([f"  {_state(row, seen)}", *(_cell(name, row.ours.get(name)) for name in names)])
        seen.append(row.setting.ours)
        for line in lines:
            table.add_row(*line)
    if without:
        table.add_row(f"[yellow]and {counted(without)} without any figures[/yellow]", *([""] * len(names)))
    return table


_FIELDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "data": lambda fields: str(fields.get("dataset", "")),
    "script": lambda fields: label_of(fields).partition(",")[0] if fields.get("script") else "",
    "engine": lambda fields: f"{fields['engine']} ({framework})" if (framework := fields.get("framework"))
    else str(fields["engine"]),
    "strategy": lambda fields: str(fields.get("strategy", ""))
    + (" (stock)" if fields.get("implementation") == "stock" else ""),
    "over": lambda fields: f"over {fields['collectives']}" if fields.get("collectives") else "",
    "size": size_of,
    "batch": lambda fields: f"batch {fields['batch_size']}" if "batch_size" in fields else "",
    "rate": lambda fields: f"learning rate {fields['learning_rate']:g}" if "learning_rate" in fields else "",
    "epochs": lambda fields: f"{fields['epochs']} epochs" if "epochs" in fields else "",
}


def _state(row: FigureComparison, seen: Sequence[object]) -> str:
    """The label of our row below a published one."""
    setting = row.setting
    if setting.ours is None:
        return "not available here"
    if setting.ours in seen:
        return f"ours is the run with {size_of(setting.ours)} above"
    smaller = size_of(setting.ours) != size_of(setting.published)
    return "ours" + (f" ({size_of(setting.ours)})" if smaller else "")


def _cell(name: str, value: float | None) -> str:
    return "–" if value is None else format(value, quantity_named(name).form)
