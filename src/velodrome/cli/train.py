"""`velodrome train`: one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome.cli.options import (
    JobCommand,
    JobFile,
    JobMirror,
    Json,
    Name,
    On,
    Place,
    Runs,
    TrustCode,
    job_from,
    where,
    with_job_options,
)

CLASS = JobCommand


@with_job_options
def command(
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
    from velodrome.cli.console import run_visibly

    job = job_from(file, fields, trust_code, on)
    target = where(on, place, job)
    run_visibly(lambda progress: train(
        job, name=name, runs=runs, on=target, mirror=mirror, on_event=progress.event, on_start=progress.begin,
        on_download=progress.data,
    ), runs, on=target, as_json=json)
