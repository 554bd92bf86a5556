"""The subcommands of `velodrome`. The code of one is loaded when it is called: its name and a sentence list it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

#: Name and, as its help begins, what it does. `train` is in `cli/train.py`, and so on.
COMMANDS = {
    "train": "Train one network under one strategy, and measure it.",
    "resume": "Continue an interrupted or failed run from its newest checkpoint.",
    "race": "Race strategies, engines, batch and cluster sizes against each other; compare them and say which to use.",
    "report": "Write a race down: verdict, figures and tables on one page that needs nothing else, or the tables "
    "alone.",
    "recommend": 'Say which configuration to use, why, and what to try next; "do not distribute this" is a possible '
    "answer.",
    "plan": "Print, for each host, the exact command and environment that starts its part of a job.",
    "engines": "List engines and strategies, and whether each can run here.",
    "data": "List, fetch, look at and check data sets.",
    "runs": "List, show, compare, check, remove and export stored runs and races.",
    "study": "Run published studies again and see ours beside theirs.",
}


def loaded(name: str) -> typer.Typer:
    """A subcommand with its code: one function, or a group of several."""
    module = import_module(f"velodrome.cli.{name}")
    if hasattr(module, "app"):
        return module.app  # type: ignore[no-any-return]
    alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="markdown")
    alone.command(name)(module.command)
    return alone


class Commands(TyperGroup):
    """Holds placeholders that help can list, and puts the real command in the place of the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = typer.main.get_command(loaded(args[0]))
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Put a placeholder for every subcommand into a group of this kind."""
    for name, sentence in COMMANDS.items():
        app.command(name, help=sentence)(_placeholder)


def _placeholder() -> None:
    raise AssertionError("never called: the group resolves every name to its real command")
