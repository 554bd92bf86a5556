"""`velodrome engines`: what can train, how, and whether it can do so here."""

from __future__ import annotations

from typing import Any

from velodrome.cli.options import Json


def listing() -> list[dict[str, Any]]:
    """Every engine with its strategies, as plain data."""
    from velodrome.offers.registry import engines

    return [
        {
            "name": engine.name,
            "description": engine.description,
            "strategies": [
                {
                    "name": strategy.name,
                    "description": strategy.description,
                    "roles": list(strategy.roles),
                    "synchronous": strategy.synchronous,
                    "consistency": strategy.consistency,
                    "available": not engine.missing(strategy),
                    "missing": engine.missing(strategy),
                }
                for strategy in engine.strategies
            ],
        }
        for engine in engines()
    ]


def command(json: Json = False) -> None:
    """List engines and strategies, and whether each can run here.

    Example: `velodrome engines --json`
    """
    import json as json_module

    found = listing()
    if json:
        print(json_module.dumps(found))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    for engine in found:
        table = Table(title=f"[bold]{engine['name']}[/bold]: {engine['description']}", title_justify="left")
        for heading in ("strategy", "here", "consistency", "roles"):
            table.add_column(heading, no_wrap=heading != "roles")
        table.add_column("what it does", overflow="fold")
        for strategy in engine["strategies"]:
            here = "[green]yes[/green]" if strategy["available"] else "[yellow]no[/yellow]"
            missing = "".join(f"\n[yellow]{escape(reason)}[/yellow]" for reason in strategy["missing"])
            table.add_row(
                strategy["name"], here, strategy["consistency"], "\n".join(strategy["roles"]),
                strategy["description"] + missing,
            )
        console.print(table)
