"""`velodrome runs`: what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli.options import Json, Runs

app = typer.Typer(no_args_is_help=True, help="List and show stored runs.")


def _number(result: dict[str, Any], part: str, name: str) -> float | None:
    """A number of a result, as far as it is there: a broken file must not hide the runs beside it."""
    fields = result.get(part)
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, int | float) else None


@app.command("list")
def list_runs(runs: Runs = Path("runs"), json: Json = False) -> None:
    """List stored runs with how they ended.

    Example: `velodrome runs list`
    """
    import json as json_module

    from velodrome.run.store import Store

    rows: list[dict[str, Any]] = []
    for run in Store(runs).runs():
        result = run.result() or {}
        rows.append({
            "run": run.name,
            "status": run.status(),
            "accuracy": _number(result, "test", "accuracy"),
            "examples_per_second": _number(result, "throughput", "examples_per_second"),
            "seconds": _number(result, "seconds", "total"),
        })
    if json:
        print(json_module.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("run", "status", "test accuracy", "examples/s", "seconds"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        numbers = [(row["accuracy"], ".4f"), (row["examples_per_second"], ",.0f"), (row["seconds"], ".1f")]
        table.add_row(row["run"], row["status"], *("" if n is None else format(n, form) for n, form in numbers))
    Console(highlight=False).print(table if rows else f"no runs in {runs}")


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Show one run: its result, or what became of it.

    Example: `velodrome runs show my-run --json`
    """
    import json as json_module

    from rich.console import Console

    from velodrome.cli.console import summary
    from velodrome.errors import VelodromeError
    from velodrome.run.store import Store

    folder = Store(runs).get(run)
    status, result = folder.status(), folder.result()
    if json:
        print(json_module.dumps(result or {"run": folder.name, "status": status}))
    elif status == "finished" and result is not None:
        try:
            table = summary(result)
        except (KeyError, TypeError, ValueError) as error:
            raise VelodromeError(f"run {folder.name!r}: its result.json is broken ({error!r})") from None
        Console(highlight=False).print(table)
    else:
        reason = f": {result['error']['message']}" if result and "error" in result else ""
        print(f"{folder.name}: {status}{reason}")
        if status in ("failed", "interrupted"):
            print(f"`velodrome resume {folder.name}` continues it from its newest checkpoint")
