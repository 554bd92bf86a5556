"""The subcommands of `velodrome`, each with the sentence that lists it. Its code is imported when it is called."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from velodrome.errors import which_name

#: What Typer's parser raises: it may be Typer's own copy of Click or an installed one, so only a subclass has a name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")
#: Name and the first sentence of its help. `train` is in `cli/train.py`, and so on.
COMMANDS = {
    "new": "Write a commented starter file for a model, a task, data or a script of yours.",
    "check": "Try a job before training: train for a second in one process, and report its time and memory.",
    "train": "Train one model with one strategy, and measure it.",
    "resume": "Continue an interrupted or failed run from its newest checkpoint.",
    "attach": "Take over a run on Slurm whose command was killed while its job kept running.",
    "race": "Race strategies, engines, batch and cluster sizes against each other, compare them and recommend one.",
    "report": "Write a report of a race: verdict, figures and tables as one self-contained page, or the tables alone.",
    "recommend": 'Recommend a configuration of a race, with the reason and what to try next; "do not distribute this" '
    "is a possible answer.",
    "plan": "Print the exact command and environment that starts each process of a job, host by host.",
    "clusters": "List, show, add, check, prepare and clean up clusters: the places where jobs can run.",
    "doctor": "Check this machine or a cluster for whatever would keep a job from running, and say how to fix it.",
    "engines": "List engines and strategies, and whether each can run here; install those that cannot.",
    "data": "List, prepare, show, verify and shard data sets.",
    "runs": "List, show, compare, check, verify, remove and export stored runs and races.",
    "export": "Export the model of a run to ONNX, and check its outputs against the engine's.",
    "predict": "Run a trained model on files: pictures, tables or texts.",
    "serve": "Serve trained models on a web page and over HTTP.",
    "study": "Reproduce published studies and compare the results.",
    "ui": "Watch races live in a browser, and open and compare runs.",
    "examples": "List and copy the example files of the documentation.",
}


def loaded(name: str) -> typer.Typer:
    """A subcommand with its code imported: one function, or a group of several."""
    module = import_module(f"velodrome.cli.{name}")
    if hasattr(module, "app"):
        return module.app  # type: ignore[no-any-return]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    alone.command(name, cls=getattr(module, "CLASS", None))(module.command)
    return alone


class Commands(TyperGroup):
    """Holds placeholders for `--help`, and replaces the one that is called by the real command."""

    def invoke(self, ctx: Any) -> Any:
        """The same, with names that are probably meant beside any command or option that does not exist."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            _suggest(error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = typer.main.get_command(loaded(args[0]))
        return super().resolve_command(ctx, args)


def _suggest(error: Any) -> None:
    """Add to the message of an unknown command or option which one was probably meant, and what lists all."""
    if error.ctx is None:
        return
    help_of = f"{error.ctx.command_path} --help"
    if option := getattr(error, "option_name", None):
        options = [name for one in error.ctx.command.get_params(error.ctx) for name in one.opts if name[:2] == "--"]
        error.possibilities = None
        error.message = f"No such option: {option}; {which_name(option, options, help_of)}"
    elif unknown := _NO_COMMAND.match(error.message):
        error.message = f"No such command {unknown[1]!r}; {which_name(unknown[1], error.ctx.command.commands, help_of)}"


def register(app: typer.Typer) -> None:
    """Put a placeholder for every subcommand into a group of this kind."""
    for name, sentence in COMMANDS.items():
        app.command(name, help=sentence)(_placeholder)


def _placeholder() -> None:
    raise AssertionError("never called: the group resolves every name to its real command")
