"""`velodrome runs`: lists and shows what is stored; comparing, checking, removing and exporting have own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli import completion, runs_compare, runs_keep, runs_verify
from velodrome.cli.options import Json, Runs, command_on
from velodrome.cli.output import complain, say, say_json

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

    found = api.show(run, runs)
    if json:
        say_json(found)
    elif "rows" in found:
        _print([found, *found["rows"]])
        _complain_of([found, *found["rows"]])
        say(f"`{command_on('report', runs / found['run'])}` writes a report of it")
    else:
        _show_run(run, found, runs)


def _show_run(asked: str, found: dict[str, Any], runs: Path) -> None:
    from velodrome.cli.summary import print_summary

    name, status = asked.rpartition("/")[2], found["status"]
    if status == "finished":
        print_summary(found)
        return
    reason = found["error"]["message"] if "error" in found else found.get("problem")
    say(f"{name}: {status}{f': {reason}' if reason else ''}")
    if status == "unreadable":
        say(f"`{command_on('runs check', runs / asked)}` shows details")
    if status in ("failed", "interrupted") and "/" not in asked:
        say(f"`{command_on('resume', runs / name)}` resumes it from its newest checkpoint")


app.command("compare")(runs_compare.command)
app.command("check")(runs_keep.check)
app.command("verify")(runs_verify.verify)
app.command("rm")(runs_keep.remove)
app.command("export")(runs_keep.export)
