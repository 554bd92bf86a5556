"""`velodrome resume`: continue a run that did not finish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Mirror, On, Place, Runs, TrustCode, asking, tell_code, where


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
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Continue an interrupted or failed run from its newest checkpoint.

    Synchronous strategies end with the same weights as an uninterrupted run.

    Example: `velodrome resume torch-ddp-2w-digits-dense-128-128b-261116-101500`
    """
    from velodrome.api.train import admit, resume
    from velodrome.cli.console import run_visibly
    from velodrome.run.store import Store
    from velodrome.run.trust import code_of

    store, launched = Store(runs), on is None
    job, names = asking(lambda names: (admit(run, store, names, launched=launched), names), trust_code)
    tell_code(f"run {run!r}", code_of(job, launched=launched))
    target = where(on, place, job)
    run_visibly(lambda progress: resume(
        run, runs=runs, on=target, mirror=mirror, trust_code=names, on_event=progress.event, on_start=progress.begin
    ), runs, on=target, as_json=json)
