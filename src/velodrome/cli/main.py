"""The command `velodrome`: its subcommands, and how errors and signals end every one of them."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

import typer

from velodrome.cli.commands import Commands, register
from velodrome.cli.output import complain
from velodrome.errors import VelodromeError

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
