"""`velodrome runs`: lists, shows and compares what is stored; the other commands are in `runs_keep.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli import completion, runs_keep
from velodrome.cli.options import Json, Runs, command_on
from velodrome.cli.output import complain, say, say_json

if TYPE_CHECKING:
    from velodrome.judge.pairs import Pair

app = typer.Typer(
    no_args_is_help=True, help="List, show, compare, check, verify, remove and export stored runs and races."
)


@app.command("list")
def list_runs(
    runs: Runs = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="List the runs within races, too.")] = False,
    status: Annotated[
        str | None,
        typer.Option("--status", help="Only what is running, finished, failed, interrupted or unreadable, or races "
                     "that are incomplete or empty.", autocompletion=completion.statuses),
    ] = None,
    json: Json = False,
) -> None:
    """List stored runs and races with their status.

    A run whose files are broken is listed as unreadable with the reason.

    Examples:

    `velodrome runs list`

    `velodrome runs list --all --status failed`
    """
    from velodrome.api import runs as api

    rows = api.list(runs, within_races=every, status=status)
    if json:
        say_json(rows)
        return
    if not rows:
        say(f"no runs in {runs}" + (f" are {status}" if status else ""))
        return
    _print(rows)
    _complain_of(rows)


def _complain_of(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row["problem"]:
            complain(f"{row['run']}: {row['problem']}; `velodrome runs check {row['run']}` shows details")


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """Print aligned columns; a rich table of ten thousand rows would take longer than reading the runs."""
    from velodrome.tasks.registry import deciding_metrics

    forms = {metric.name: metric.form for metric in deciding_metrics()}
    lines = [("run", "status", "test", "examples/s", "seconds")]
    for row in rows:
        if row["kind"] == "race":
            done = f"{row['finished']} of {row['jobs']} done"
            lines.append((f"{row['run']}/", row["status"], f"race of {row['jobs']}", done, ""))
            continue
        name = row["metric"]
        quality = _text(row["value"], forms.get(name, ".4g"), "" if name == "accuracy" else f"{name} ")
        lines.append((
            row["run"], row["status"], quality, _text(row["examples_per_second"], ",.0f"), _text(row["seconds"], ",.1f")
        ))
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    for line in lines:
        cells = [cell.ljust(width) if place < 2 else cell.rjust(width)
                 for place, (cell, width) in enumerate(zip(line, widths, strict=True))]
        say("  ".join(cells).rstrip())


def _text(value: float | None, form: str, before: str = "") -> str:
    return "" if value is None else before + format(value, form)


@app.command("show")
def show(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of a run, of a race, or RACE/RUN.", autocompletion=completion.stored),
    ],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Show the result of a run, or its status if it has none; of a race, its runs.

    Examples:

    `velodrome runs show my-run --json`

    `velodrome runs show first/torch-ddp-2w-128b-1`
    """
    from velodrome.api import runs as api

    stored = api.show(run, runs)
    if json:
        say_json(stored)
    elif "rows" in stored:
        _print([stored, *stored["rows"]])
        _complain_of([stored, *stored["rows"]])
        say(f"`{command_on('report', runs / stored['run'])}` writes a report of it")
    else:
        _show_run(run, stored, runs)


def _show_run(asked: str, result: dict[str, Any], runs: Path) -> None:
    from velodrome.cli.run_output import print_summary

    name, status = asked.rpartition("/")[2], result["status"]
    if status == "finished":
        print_summary(result)
        return
    reason = result["error"]["message"] if "error" in result else result.get("problem")
    say(f"{name}: {status}{f': {reason}' if reason else ''}")
    if status == "unreadable":
        say(f"`{command_on('runs check', runs / asked)}` shows details")
    if status in ("failed", "interrupted") and "/" not in asked:
        say(f"`{command_on('resume', runs / name)}` resumes it from its newest checkpoint")


@app.command("compare")
def compare(
    first: Annotated[
        str, typer.Argument(metavar="A", help="Name of a run, or RACE/RUN.", autocompletion=completion.stored)
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=completion.stored)],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Compare two runs: their configuration, their measurements, and what differs.

    Runs in the same folder that differ from A or B in the seed only count as repetitions. A is reported to beat B only
    if both have repetitions and the 95 % interval of the ratio excludes 1.

    Examples:

    `velodrome runs compare first/torch-ddp-2w-128b-1 first/torch-single-1w-128b-1`

    `velodrome runs compare monday tuesday --json`
    """
    from velodrome.api import runs as api

    pair, skipped = api.compare_runs(first, second, runs)
    for name, problem in skipped.items():
        complain(f"{name}: {problem}; it is left out")
    if json:
        say_json({**pair.as_json(), "skipped": skipped})
    else:
        _show_pair(pair)


def _show_pair(pair: Pair) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from velodrome.cli.tables import SafeConsole, print_table
    from velodrome.judge.configuration import text_of

    console = SafeConsole()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for letter, name in zip("AB", pair.names, strict=True):
        console.print(f"{letter}: {name}", soft_wrap=True, markup=False)
        table.add_column(letter, justify="right")
    table.add_column("A / B", justify="right")
    table.add_row("runs", *(str(len(side)) for side in pair.results), "")
    for name, values in pair.differing.items():
        table.add_row(f"[yellow]{name}[/yellow]", *(escape(text_of(value)) for value in values), "")
    for line in pair.lines:
        cells = ["–" if value is None else line.measure.text(value) for value in line.means]
        table.add_row(f"{line.measure.heading} {line.measure.unit}".strip(), *cells, _ratio(line.ratio))
    print_table(console, table)
    same = ", ".join(f"{name} {text_of(value)}" for name, value in pair.same.items())
    console.print(f"The same for both: {same}", soft_wrap=True, markup=False)
    for sentence in pair.sentences():
        console.print(sentence, soft_wrap=True, markup=False)


def _ratio(place: Any) -> str:
    if place is None:
        return ""
    interval = f" ({place.low:.2f}–{place.high:.2f})" if place.has_interval else ""
    return f"{place.estimate:.2f}{interval}"


app.command("check")(runs_keep.check)
app.command("verify")(runs_keep.verify)
app.command("rm")(runs_keep.remove)
app.command("export")(runs_keep.export)
