"""`velodrome study`: reproduces published studies and prints our figures beside the published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from velodrome.cli import completion
from velodrome.cli.data import BadDataOption, checked
from velodrome.cli.options import Json, Mirror, On, Place, Runs, command_on, where
from velodrome.cli.output import SafeConsole, print_table, say, say_json
from velodrome.studies.outcome import QUANTITIES, FigureComparison, quantities_of
from velodrome.studies.plan import StudyPlan, size_of

if TYPE_CHECKING:
    from velodrome.api.study import FinishedStudy

study_app = typer.Typer(no_args_is_help=True, help="Reproduce published studies and compare the results.")

StudyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.", autocompletion=completion.studies)]
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
    typer.Option("--data-url", metavar="URL", help="Read every data set NAME from shards at URL/NAME, as hdfs://…"),
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run, and exit.")]


@study_app.command("list")
def list_studies(json: Json = False) -> None:
    """List the published studies that can be reproduced.

    Example: `velodrome study list`
    """
    from velodrome.api import study

    rows = study.list()
    if json:
        say_json(rows)
        return
    for row in rows:
        say(f"{row['name']:<16} {row['title']}")


@study_app.command("show")
def show(name: StudyName, scale: ScaleOption = "full", mirror: Mirror = None, json: Json = False) -> None:
    """Show a study: what was published, what would run here at a scale, and what is missing.

    Examples:

    `velodrome study show kouskouras-2022`

    `velodrome study show jaeger-2018 --scale small --json`
    """
    from velodrome.api import study as api

    if json:
        say_json(api.show(name, scale, mirror=mirror))
        return
    plan, rows = api.planned_rows(name, scale, mirror)
    study = plan.study
    console = SafeConsole()
    console.print(f"[bold]{study.name}[/bold]: {study.title}", soft_wrap=True)
    console.print(f"Source: {study.source}", soft_wrap=True, markup=False)
    console.print(f"Machines: {study.machines}", soft_wrap=True, markup=False)
    print_table(console, comparison(plan, rows, ours=False))
    for claim in study.claims:
        console.print(f"Published finding: {claim.text}", soft_wrap=True, markup=False)
    for line in plan_lines(plan):
        console.print(line, soft_wrap=True, markup=False)


@study_app.command("run")
def run(
    name: StudyName, scale: ScaleOption = "smoke", runs: Runs = Path("runs"), race_name: RaceName = None,
    repeat: Repeat = 1, dataset: DataSet = None, data_url: DataUrl = None, bad_data: BadDataOption = "fail",
    naming: Naming = None, dry_run: DryRun = False, on: On = None, place: Place = None, mirror: Mirror = None,
    json: Json = False,
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
    """
    from velodrome.api.study import StudyRequest, run_study
    from velodrome.cli.console import error_console
    from velodrome.cli.race_output import TerminalRace
    from velodrome.studies.plan import Choice

    def show_plan(plan: StudyPlan) -> None:
        for line in plan_lines(plan):
            error_console.print(line, soft_wrap=True, markup=False)

    target = where(on, place)
    choice = Choice(dataset, data_url, repeat, naming, checked(bad_data))
    asked = StudyRequest(name, scale, choice, runs, race_name, on=target, dry_run=dry_run, mirror=mirror)
    finished = run_study(asked, TerminalRace(live=not target.launcher.interactive), show_plan)
    if json:
        say_json(finished.as_json())
    else:
        _show(finished)
    if finished.failed:
        raise typer.Exit(1)


def _show(finished: FinishedStudy) -> None:
    """Published figures and ours, what differs, and what becomes of the published findings."""
    console = SafeConsole()
    print_table(console, comparison(finished.plan, finished.configurations, ours=finished.ran))
    for line in differences(finished.plan):
        console.print(line, soft_wrap=True, markup=False)
    for finding in finished.findings:
        console.print(f"“{finding.claim}”: {finding.verdict} ({finding.why})", soft_wrap=True, markup=False)
    if finished.ran:
        console.print(f"`{command_on('report', finished.folder)}` writes a report of it", soft_wrap=True, markup=False)


def plan_lines(plan: StudyPlan) -> list[str]:
    """What cannot run here and what was reduced, a sentence each."""
    lines = [f"missing for {_counted(count)}: {reason}" for reason, count in plan.missing.items()]
    lines += [f"reduced: {reduction}" for reduction in plan.reductions]
    if plan.left_out:
        lines.append(f"left out at scale {plan.scale}: {_counted(plan.left_out)}")
    return [*lines, *([plan.data] if plan.data else [])]


def _counted(count: int) -> str:
    return f"{count} configuration{'' if count == 1 else 's'}"


def differences(plan: StudyPlan) -> list[str]:
    """What differs from the published study, a sentence each."""
    lines = [f"Machines: published {plan.study.machines}; ours {plan.site.machines}."]
    changes = Counter(change for setting in plan.settings for change in setting.changes)
    if changes:
        ran = sum(setting.ours is not None for setting in plan.settings)
        changed = [change if count == ran else f"{change} (in {count} of {ran})" for change, count in changes.items()]
        lines.append(f"Scale {plan.scale}: {'; '.join(changed)}.")
    lines += [f"{note[0].upper()}{note[1:]}." for note in plan.study.notes]
    return [*lines, f"Source of the published figures: {plan.study.source}."]


def comparison(plan: StudyPlan, rows: Sequence[FigureComparison], *, ours: bool) -> Table:
    """A row for each configuration, published figures above ours, labelled by the fields that differ between rows."""
    names = quantities_of(plan.study) if ours or plan.study.figures else []
    fields = [field for field in _FIELDS if len({_FIELDS[field](row.setting.published) for row in rows}) > 1]
    same = ", ".join(_FIELDS[field](rows[0].setting.published) for field in _FIELDS if field not in fields)
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left",
        title=": ".join(filter(None, [plan.study.name, escape(same)]))
        + (f"; ours at scale {plan.scale}" if ours else ""),
    )
    table.add_column("configuration")
    for name in names:
        table.add_column(QUANTITIES[name].heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    seen: list[object] = []
    without = 0
    for row in rows:
        # No published figures and none of ours: `plan_lines` reports what is missing or reduced.
        if not row.published and ours and (row.setting.missing or row.setting.ours in seen):
            without += 1
            continue
        label = escape(" ".join(_FIELDS[field](row.setting.published) for field in fields) or same)
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
        table.add_row(f"[yellow]and {_counted(without)} without any figures[/yellow]", *([""] * len(names)))
    return table


_FIELDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "data": lambda fields: str(fields["dataset"]),
    "engine": lambda fields: f"{fields['engine']} ({framework})" if (framework := fields.get("framework"))
    else str(fields["engine"]),
    "strategy": lambda fields: str(fields["strategy"]),
    "size": size_of,
    "batch": lambda fields: f"batch {fields['batch_size']}",
    "epochs": lambda fields: f"{fields['epochs']} epochs",
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
    return "–" if value is None else format(value, QUANTITIES[name].form)
