"""`velodrome runs`: lists, shows, compares, checks, verifies, removes and packs what is stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import velodrome
from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Run, Runs, StoredRun, TrustCode, asking, command_on, relative
from velodrome.cli.output import SafeConsole, complain, print_table, say, say_json, say_on_stderr
from velodrome.errors import printable

if TYPE_CHECKING:
    from velodrome.judge.pairs import Pair


runs_app = typer.Typer(
    no_args_is_help=True, help="List, show, compare, check, verify, remove and export stored runs and races."
)


@runs_app.command("list")
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
    rows = velodrome.runs.list(runs, within_races=every, status=status)
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


@runs_app.command("show")
def show(
    run: StoredRun,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Show the result of a run, or its status if it has none; of a race, its runs.

    Examples:

    `velodrome runs show my-run --json`

    `velodrome runs show first/torch-ddp-2w-128b-1`
    """
    stored = velodrome.runs.show(run, runs)
    if json:
        say_json(stored)
    elif "rows" in stored:
        _print([stored, *stored["rows"]])
        _complain_of([stored, *stored["rows"]])
        say(f"`{command_on('report', runs / stored['run'])}` writes a report of it")
    else:
        _show_run(run, stored, runs)


def _show_run(asked: str, result: dict[str, Any], runs: Path) -> None:
    from velodrome.cli.train import print_summary

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


@runs_app.command("compare")
def compare(
    first: Annotated[
        str, typer.Argument(metavar="A", help="Name of a run, or RACE/RUN.", autocompletion=completion.stored)
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=completion.stored)],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Compare two runs: their configuration, their measurements, and what differs.

    Runs in the same folder that differ from A or B only in their seed count as repetitions. A is reported to beat B
    only if both have repetitions and the 95 % interval of the ratio excludes 1.

    Examples:

    `velodrome runs compare first/torch-ddp-2w-128b-1 first/torch-single-1w-128b-1`

    `velodrome runs compare monday tuesday --json`
    """
    pair, skipped = velodrome.runs.compare_runs(first, second, runs)
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


@runs_app.command("check")
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs, races or folders; by default everything.",
                       autocompletion=completion.stored),
    ] = None,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Check run folders against the documented schema: files, events, epochs in order, counts that add up.

    Takes names, RACE/RUN, and paths of folders that came from elsewhere. Exit code 1 if there are problems. Archived
    attempts of a race are checked only if they are named.

    Examples:

    `velodrome runs check`

    `velodrome runs check my-run /tmp/unpacked/their-run`
    """
    checked = velodrome.runs.check(*(names or ()), runs=runs)
    wrong = [run for run in checked["runs"] if run["problems"]]
    if json:
        say_json(checked)
    else:
        for run in wrong:
            say(f"{run['path']}:")
            for problem in run["problems"]:
                say(f"  {problem}")
        count = len(checked["runs"])
        say(f"{count} checked, {len(wrong)} with problems" if count else f"no runs in {runs}")
    if wrong:
        raise typer.Exit(1)


@runs_app.command("verify")
def verify(
    run: Run,
    runs: Runs = Path("runs"),
    mirror: Mirror = None,
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Load a run's saved model in a fresh process, and compare its test metric with the one that the run reported.

    Counts, such as the number of correct answers, must be equal. Everything else may differ by one part in 10,000 (in
    100 million for float64), because another number of workers sums in another order. Exit code 1 if they differ by
    more, or if the model cannot be loaded.

    Example: `velodrome runs verify my-run --json`
    """
    from velodrome.run.dry_run import DryRunFailed

    try:
        checked = asking(lambda names: velodrome.runs.verify(run, runs, mirror=mirror, trust_code=names), trust_code)
    except DryRunFailed as error:
        if error.failure.traceback:
            say_on_stderr(error.failure.traceback.rstrip())
        if json:
            say_json({"run": run, "ok": False, "problems": [str(error)]})
        complain(f"the model of run {run!r} cannot be loaded and evaluated: {error}")
        raise typer.Exit(1) from None
    if json:
        say_json(checked)
    else:
        for name, value in checked["measured"].items():
            say(f"{name:<12} {_exact(value)}  (reported: {_exact(checked['reported'][name])})")
        for problem in checked["problems"]:
            complain(problem)
        outcome = "reproduces" if checked["ok"] else "does not reproduce"
        say(f"{checked['run']}: the saved model {outcome} what was reported")
    if not checked["ok"]:
        raise typer.Exit(1)


def _exact(value: float | None) -> str:
    return "not finite" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


@runs_app.command("rm")
def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Names of runs or races, or RACE/RUN.", autocompletion=completion.stored),
    ],
    runs: Runs = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Remove runs or whole races permanently. Asks first; what is running is never removed, and no link is followed.

    Examples:

    `velodrome runs rm my-run`

    `velodrome runs rm old-race other-race/torch-ddp-2w-128b-1 --yes`
    """
    from velodrome.errors import BadRequest

    what = ", ".join(f"{entry.kind} {entry.path.relative_to(runs)}" for entry in velodrome.runs.removable(names, runs))
    if not yes:
        if not sys.stdin.isatty():
            raise BadRequest(f"this would remove {what}: give --yes, because there is no terminal to confirm on")
        typer.confirm(printable(f"Remove {what} permanently?"), abort=True)
    removed = velodrome.runs.remove(*names, runs=runs)
    if json:
        say_json(removed)
    else:
        say(f"removed {what}")


@runs_app.command("export")
def export(
    name: StoredRun,
    runs: Runs = Path("runs"),
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; by default NAME.zip in the current folder.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="zip, tar.gz or csv (results only); by default from --out, else zip.",
                     autocompletion=completion.export_formats),
    ] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Include the checkpoints.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Pack a run or a race into one file without its checkpoints, or write its results as a CSV table.

    Prints the path of the file it wrote.

    Examples:

    `velodrome runs export first --out first.tar.gz`

    `velodrome runs export first --format csv`
    """
    written = velodrome.runs.export(name, runs=runs, out=out, format=form, checkpoints=checkpoints, force=force)
    for run in written.get("skipped", ()):
        complain(f"{run}: it has no readable result and is left out")
    if json:
        say_json(written)
    else:
        say(relative(written["file"]))
