"""`velodrome runs`: what is stored. Listing and showing live here, comparing and keeping beside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli import runs_compare, runs_keep
from velodrome.cli.options import Json, Runs

app = typer.Typer(no_args_is_help=True, help="List, show, compare, check, remove and export stored runs and races.")


@app.command("list")
def list_runs(
    runs: Runs = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Show the runs within races too.")] = False,
    status: Annotated[
        str | None, typer.Option("--status", help="Only running, finished, failed, interrupted or unreadable ones.")
    ] = None,
    json: Json = False,
) -> None:
    """List stored runs and races with how they ended.

    A run whose files are broken is listed as unreadable, with what is wrong, and hides no other.

    Examples:

    `velodrome runs list`

    `velodrome runs list --all --status failed`
    """
    import json as json_module

    from velodrome.errors import BadRequest
    from velodrome.run.listing import STATUSES, row_of_race, row_of_run, scan

    if status is not None and status not in STATUSES:
        raise BadRequest(f"--status {status!r}: choose one of {', '.join(STATUSES)}")
    rows: list[dict[str, Any]] = []
    for found in scan(runs):
        rows.append(row_of_run(found.path) if found.kind == "run" else row_of_race(found.path))
        if every and found.kind == "race":
            rows += [row_of_run(run.path, found.name) for run in scan(found.path) if run.kind == "run"]
    if status is not None:
        rows = [row for row in rows if row["status"] == status]
    if json:
        print(json_module.dumps(rows))
        return
    if not rows:
        print(f"no runs in {runs}" + (f" are {status}" if status else ""))
        return
    _print(rows)
    for row in rows:
        if row["problem"]:
            print(f"velodrome: {row['run']}: {row['problem']}; `velodrome runs check {row['run']}` tells more",
                  file=sys.stderr)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """Columns by hand: a drawn table of ten thousand rows would take longer than reading them."""
    lines = [("run", "status", "test", "examples/s", "seconds")]
    for row in rows:
        if row["kind"] == "race":
            lines.append((f"{row['run']}/", row["status"], f"race of {row['runs']}", f"{row['finished']} finished", ""))
            continue
        quality = _text(row["accuracy"], ".4f") or _text(row["perplexity"], ",.2f", "perplexity ")
        lines.append((
            row["run"], row["status"], quality, _text(row["examples_per_second"], ",.0f"), _text(row["seconds"], ",.1f")
        ))
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    for line in lines:
        cells = [cell.ljust(width) if place < 2 else cell.rjust(width)
                 for place, (cell, width) in enumerate(zip(line, widths, strict=True))]
        print("  ".join(cells).rstrip())


def _text(value: float | None, form: str, before: str = "") -> str:
    return "" if value is None else before + format(value, form)


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, of a race, or RACE/RUN.")],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Show one run: its result, or what became of it. Of a race, its runs.

    Examples:

    `velodrome runs show my-run --json`

    `velodrome runs show first/torch-ddp-2w-128b-1`
    """
    import json as json_module

    from velodrome.run.listing import locate, row_of_race, row_of_run, scan
    from velodrome.run.store import RunFolder

    found = locate(runs, run)
    if found.kind == "race":
        rows = [row_of_run(one.path, found.name) for one in scan(found.path) if one.kind == "run"]
        if json:
            print(json_module.dumps({**row_of_race(found.path), "rows": rows}))
            return
        _print([row_of_race(found.path), *rows])
        print(f"`velodrome report {found.name}` writes it down")
        return
    folder = RunFolder(found.path)
    status, result = folder.status(), folder.result()
    if json:
        print(json_module.dumps(result or {"run": folder.name, "status": status}))
        return
    _show_run(folder.name, run, status, result)


def _show_run(name: str, asked: str, status: str, result: dict[str, Any] | None) -> None:
    from rich.console import Console

    from velodrome.cli.console import summary
    from velodrome.errors import VelodromeError

    if status == "finished" and result is not None:
        try:
            table = summary(result)
        except (KeyError, TypeError, ValueError, AttributeError) as broken:
            raise VelodromeError(
                f"run {name!r}: its result.json is broken ({broken!r}); `velodrome runs check {asked}` tells more"
            ) from None
        Console(highlight=False).print(table)
        return
    error = result.get("error") if result else None
    reason = f": {error['message']}" if isinstance(error, dict) and "message" in error else ""
    print(f"{name}: {status}{reason}")
    if status in ("failed", "interrupted") and "/" not in asked:
        print(f"`velodrome resume {name}` continues it from its newest checkpoint")


app.command("compare")(runs_compare.command)
app.command("check")(runs_keep.check)
app.command("rm")(runs_keep.remove)
app.command("export")(runs_keep.export)
