"""`velodrome runs verify`: loads a saved model in a fresh process and evaluates it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, Runs, TrustCode, asking
from velodrome.cli.output import complain, say, say_json, say_on_stderr


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
        found = asking(lambda names: api.verify(run, runs, mirror=mirror, trust_code=names), trust_code)
    except RehearsalFailed as error:
        if error.failure.traceback:
            say_on_stderr(error.failure.traceback.rstrip())
        if json:
            say_json({"run": run, "ok": False, "problems": [str(error)]})
        complain(f"the model of run {run!r} cannot be loaded and evaluated: {error}")
        raise typer.Exit(1) from None
    if json:
        say_json(found)
    else:
        for name, value in found["measured"].items():
            say(f"{name:<12} {_text(value)}  (reported: {_text(found['reported'][name])})")
        for problem in found["problems"]:
            complain(problem)
        outcome = "reproduces" if found["ok"] else "does not reproduce"
        say(f"{found['run']}: the saved model {outcome} what was reported")
    if not found["ok"]:
        raise typer.Exit(1)


def _text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
