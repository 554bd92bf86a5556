"""`velodrome attach`: take over a run whose command was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json, Runs, TrustCode, asking


def command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of the run, as `velodrome runs list` shows it.",
                       autocompletion=completion.unfinished),
    ],
    runs: Runs = Path("runs"),
    trust_code: TrustCode = None,
    json: Json = False,
) -> None:
    """Take over a run on Slurm whose command was killed while its job kept running.

    No event is lost. Ctrl-C cancels the job, as with `velodrome train`.

    Example: `velodrome attach torch-ddp-2w-digits-dense-128-128b-261116-101500`
    """
    from velodrome.api.train import admit, attach
    from velodrome.cli.console import run_visibly
    from velodrome.run.store import Store

    _, names = asking(lambda names: (admit(run, Store(runs), names, launched=True), names), trust_code)
    run_visibly(lambda progress: attach(
        run, runs=runs, trust_code=names, on_event=progress.event, on_start=progress.begin
    ), runs, on="local", as_json=json)
