"""`velodrome engines`: what can train, how, and whether it can do so here."""

from __future__ import annotations

from typing import Any

from velodrome.cli.options import Json


def listing() -> list[dict[str, Any]]:
    """Every engine with its strategies, as plain data."""
    from velodrome.engines.registry import engines

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
    from rich.table import Table

    table = Table(title="Engines and strategies", title_justify="left")
    for heading in ("engine", "strategy", "what it does", "roles", "consistency", "here"):
        table.add_column(heading, overflow="fold")
    for engine in found:
        for strategy in engine["strategies"]:
            missing = "; ".join(strategy["missing"])
            here = f"[yellow]no[/yellow]: {missing}" if missing else "[green]yes[/green]"
            table.add_row(
                engine["name"], strategy["name"], strategy["description"], ", ".join(strategy["roles"]),
                strategy["consistency"], here,
            )
        table.add_section()
    Console(highlight=False).print(table)
