"""`velodrome resume`: continue a run that did not finish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, On, Place, Runs, where


def command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of the run, as `velodrome runs list` shows it.",
                       autocompletion=completion.unfinished),
    ],
    runs: Runs = Path("runs"),
    on: On = None,
    place: Place = None,
    mirror: Mirror = None,
    json: Json = False,
) -> None:
    """Continue an interrupted or failed run from its newest checkpoint.

    Synchronous strategies end with the same weights as an uninterrupted run.

    Example: `velodrome resume torch-ddp-2w-digits-dense-128-128b-261116-101500`
    """
    from velodrome.api.train import resume
    from velodrome.cli.console import run_visibly
    from velodrome.run.store import Store

    target = where(on, place, Store(runs).get(run).job())
    run_visibly(lambda progress: resume(
        run, runs=runs, on=target, mirror=mirror, on_event=progress.event, on_start=progress.begin
    ), runs, on=target, as_json=json)
