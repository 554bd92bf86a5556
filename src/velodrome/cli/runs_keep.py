"""`velodrome runs check`, `verify`, `rm` and `export`: validates, removes and packs what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Runs, TrustCode, asking
from velodrome.cli.output import complain, say, say_json, say_on_stderr
from velodrome.printable import printable


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
    from velodrome.api import runs as api

    checked = api.check(*(names or ()), runs=runs)
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
    import sys

    from velodrome.api import runs as api
    from velodrome.errors import BadRequest

    what = ", ".join(f"{entry.kind} {entry.path.relative_to(runs)}" for entry in api.removable(names, runs))
    if not yes:
        if not sys.stdin.isatty():
            raise BadRequest(f"this would remove {what}: give --yes, because this is no terminal to confirm on")
        typer.confirm(printable(f"Remove {what} permanently?"), abort=True)
    removed = api.remove(*names, runs=runs)
    if json:
        say_json(removed)
    else:
        say(f"removed {what}")


def export(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run or race, or RACE/RUN.", autocompletion=completion.stored)
    ],
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
    from velodrome.api import runs as api
    from velodrome.cli.options import relative

    written = api.export(name, runs=runs, out=out, format=form, checkpoints=checkpoints, force=force)
    for run in written.get("skipped", ()):
        complain(f"{run}: it has no readable result and is left out")
    if json:
        say_json(written)
    else:
        say(relative(written["file"]))


def verify(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A finished run, RACE/RUN, or the path of its folder.",
                       autocompletion=completion.stored),
    ],
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
    from velodrome.api import runs as api
    from velodrome.run.dry_run import RehearsalFailed

    try:
        checked = asking(lambda names: api.verify(run, runs, mirror=mirror, trust_code=names), trust_code)
    except RehearsalFailed as error:
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
