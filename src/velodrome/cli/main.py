"""The command `velodrome`: its subcommands, and how errors and signals end every one of them."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from velodrome.cli.output import complain
from velodrome.errors import VelodromeError, which_name

#: What Typer's parser raises: it may be Typer's own copy of Click or an installed one, so only a subclass has a name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")
#: The module of each command, and the first sentence of its help.
COMMANDS = {
    "new": ("new", "Write a commented starter file for a model, a task, data or a script of yours."),
    "check": ("check", "Try a job before training: train for a second in one process, and report its time and memory."),
    "train": ("train", "Train one model with one strategy, and measure it."),
    "resume": ("train", "Continue an interrupted or failed run from its newest checkpoint."),
    "attach": ("train", "Take over a run on Slurm whose command was killed while its job kept running."),
    "race": ("race", "Race strategies, engines, batch and cluster sizes against each other, compare them and "
             "recommend one."),
    "report": ("race", "Write a report of a race: verdict, figures and tables as one self-contained page, or the "
               "tables alone."),
    "recommend": ("race", 'Recommend a configuration of a race, with the reason and what to try next; "do not '
                  'distribute this" is a possible answer.'),
    "plan": ("check", "Print the exact command and environment that starts each process of a job, host by host."),
    "clusters": ("clusters", "List, show, add, check, prepare and clean up clusters: the places where jobs can run."),
    "doctor": ("check", "Check this machine or a cluster for whatever would keep a job from running, and say how to "
               "fix it."),
    "engines": ("clusters", "List engines and strategies, and whether each can run here; install those that cannot."),
    "data": ("data", "List, prepare, show, verify and shard data sets."),
    "runs": ("runs", "List, show, compare, check, verify, remove and export stored runs and races."),
    "export": ("serve", "Export the model of a run to ONNX, and check its outputs against the engine's."),
    "predict": ("serve", "Run a trained model on files: pictures, tables or texts."),
    "serve": ("serve", "Serve trained models on a web page and over HTTP."),
    "study": ("study", "Reproduce published studies and compare the results."),
    "ui": ("serve", "Watch races live in a browser, and open and compare runs."),
    "examples": ("new", "List and copy the example files of the documentation."),
}


def loaded(name: str) -> typer.Typer:
    """A subcommand with its code imported: the function `NAME_command`, or the group `NAME_app`."""
    module = import_module(f"velodrome.cli.{COMMANDS[name][0]}")
    group: typer.Typer | None = getattr(module, f"{name}_app", None)
    if group is not None:
        return group
    command = getattr(module, f"{name}_command")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    alone.command(name, cls=getattr(command, "command_class", None))(command)
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
        options = [
            name for known in error.ctx.command.get_params(error.ctx) for name in known.opts if name[:2] == "--"
        ]
        error.possibilities = None
        error.message = f"No such option: {option}; {which_name(option, options, help_of)}"
    elif unknown := _NO_COMMAND.match(error.message):
        error.message = f"No such command {unknown[1]!r}; {which_name(unknown[1], error.ctx.command.commands, help_of)}"


def register(app: typer.Typer) -> None:
    """Put a placeholder for every subcommand into a group of this kind."""
    for name, (_, sentence) in COMMANDS.items():
        app.command(name, help=sentence)(_placeholder)


def _placeholder() -> None:
    raise AssertionError("never called: the group resolves every name to its real command")


app = typer.Typer(
    name="velodrome",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Race distributed-training strategies on your model and data, and find out which one to use.",
    epilog="Start with:  velodrome train --dataset digits",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"velodrome {version('velodrome')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


register(app)


_ENDING: dict[object, str] = {
    128 + signal.SIGINT: "interrupted by Ctrl-C",
    128 + signal.SIGTERM: "ended by SIGTERM",
    128 + signal.SIGHUP: "ended by SIGHUP",
}


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class _Interrupt:
    """The handler of Ctrl-C: the first one ends the command; later ones do not disturb the clean-up."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.came:
            self.came = True
            raise KeyboardInterrupt


def _shell() -> AbstractContextManager[None]:
    """What a shell needs that asks for completions."""
    if os.environ.get("_VELODROME_COMPLETE") != "complete_bash":
        return nullcontext()
    from velodrome.cli.completion import bash_words

    return bash_words()


def main(words: list[str] | None = None) -> None:
    """Run a command; its exit code is 0, 1 for a failed run, 2 for an invalid request, 130 for Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    # A shell that starts us in the background may make us ignore SIGINT; whoever sends it wants us to end.
    signal.signal(signal.SIGINT, _Interrupt())
    try:
        with _shell():
            app(words, prog_name="velodrome", standalone_mode=True)
    except VelodromeError as error:
        sys.stdout.flush()
        complain(error)
        sys.exit(error.exit_code)
    except SystemExit as end:
        # Typer has turned Ctrl-C into this code already.
        if end.code in _ENDING:
            # Python restores default handlers when it ends: a signal at that moment would change our exit code.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            # Where Ctrl-C interrupted `exec` of a string, as dataclasses use it, Python notes that nobody handled it,
            # and would end by the signal instead of our exit code. Every later `exec` clears that note.
            exec("")
            complain(f"{_ENDING[end.code]}; nothing is left running")
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        complain(f"{error.strerror or error}: {error.filename or 'no file named'}")
        sys.exit(1)
