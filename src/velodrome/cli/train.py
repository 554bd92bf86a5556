"""Commands that run one job: `velodrome train`, `resume` and `attach`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import (
    JobFile,
    JobMirror,
    Json,
    Mirror,
    Name,
    On,
    Place,
    Runs,
    TrustCode,
    asking,
    job_from,
    tell_code,
    where,
    with_job_options,
)


@with_job_options
def train_command(
    file: JobFile = None, name: Name = None, runs: Runs = Path("runs"), on: On = None, place: Place = None,
    mirror: JobMirror = None, trust_code: TrustCode = None, json: Json = False, *, fields: dict[str, Any],
) -> None:
    """Train one model with one strategy, and measure it.

    Examples:

    `velodrome train --dataset digits`

    `velodrome train --dataset digits --engine torch --strategy ddp --workers 2`

    `velodrome train --dataset mnist --model dense-300-100 --engine tensorflow --strategy parameter-server --workers 2 --servers 1`

    `velodrome train job.yaml --seed 7 --json`

    `velodrome train --script train.py --script-args "--lr 0.1 --batch-size {64/workers}" --workers 2`

    Exit codes: 0 finished, 1 the run failed, 2 the request is not valid, 130 Ctrl-C.
    """  # noqa: E501
    from velodrome.api.train import train
    from velodrome.cli.run_output import run_visibly

    job = job_from(file, fields, trust_code, on)
    target = where(on, place, job)
    run_visibly(lambda progress: train(
        job, name=name, runs=runs, on=target, mirror=mirror, on_event=progress.event, on_start=progress.begin,
        on_download=progress.data,
    ), runs, on=target, as_json=json)


def resume_command(
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
    from velodrome.cli.run_output import run_visibly
    from velodrome.run.store import Store
    from velodrome.run.trust import code_of

    store, launched = Store(runs), on is None
    job, names = asking(lambda names: (admit(run, store, names, launched=launched), names), trust_code)
    tell_code(f"run {run!r}", code_of(job, launched=launched))
    target = where(on, place, job)
    run_visibly(lambda progress: resume(
        run, runs=runs, on=target, mirror=mirror, trust_code=names, on_event=progress.event, on_start=progress.begin
    ), runs, on=target, as_json=json)


def attach_command(
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
    from velodrome.cli.run_output import run_visibly
    from velodrome.run.store import Store

    _, names = asking(lambda names: (admit(run, Store(runs), names, launched=True), names), trust_code)
    run_visibly(lambda progress: attach(
        run, runs=runs, trust_code=names, on_event=progress.event, on_start=progress.begin
    ), runs, on="local", as_json=json)
