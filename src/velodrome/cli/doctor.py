"""`velodrome doctor`: examines where a job would run, before it does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from velodrome.cli.options import (
    JobCommand,
    JobFile,
    JobMirror,
    Json,
    On,
    Place,
    TrustCode,
    job_from,
    where,
    with_job_options,
)
from velodrome.cli.output import say, say_json, say_on_stderr
from velodrome.printable import bytes_text

CLASS = JobCommand
#: How many files of the user's code are printed.
MOST_FILES = 50
Measure = Annotated[
    bool, typer.Option("--measure", help="Measure round-trip time and bandwidth between every pair of hosts.")
]


@with_job_options
def command(
    file: JobFile = None, on: On = None, place: Place = None, measure: Measure = False, mirror: JobMirror = None,
    trust_code: TrustCode = None, json: Json = False, *, fields: dict[str, Any],
) -> None:
    """Check this machine or a cluster for whatever would keep a job from running, and say how to fix it.

    On a cluster it checks all hosts at the same time: whether they can be reached, names and addresses, ports between
    them, versions of Python and packages, clocks, disk, memory, the job's data, and your own modules. Each finding
    names the host, the cause and how to fix it. The files of your code that the job would send are listed. On this
    machine it also measures how many cores other programs use, because they make the results of races less certain.

    Example: `velodrome doctor --engine torch --strategy ddp --workers 2 --model dense-128`

    Exit codes: 0 no error, 1 at least one error.
    """
    from velodrome.api.doctor import doctor

    job = job_from(file, fields, trust_code, on)
    found = doctor(job, on=where(on, place, job), measure=measure, mirror=mirror, on_wait=say_on_stderr)
    report(found, as_json=json)


def report(found: dict[str, Any], *, as_json: bool) -> None:
    """Print findings, and end with 1 if one of them is an error."""
    if as_json:
        say_json(found)
    else:
        if (code := found["code"]) is not None:
            say(f"code sent to each host: {len(code['files'])} files, {bytes_text(code['bytes'])}")
            for file in code["files"][:MOST_FILES]:
                say(f"  {file['name']} ({bytes_text(file['bytes'])})")
            if (more := len(code["files"]) - MOST_FILES) > 0:
                say(f"  and {more} more, which --json lists")
        for finding in found["findings"]:
            say(f"{finding['level']}: {finding['sentence']}")
        for pair in found["pairs"]:
            if pair["round_trip"] is None:
                say(f"{pair['from']} to {pair['to']}: not connected")
            else:
                say(f"{pair['from']} to {pair['to']}: round trip {1e3 * pair['round_trip']:.2f} ms, "
                    f"{pair['bandwidth'] / 1e6:,.0f} Mbit/s")
        fine = "no errors, but see the warnings" if found["findings"] else "nothing is wrong"
        say(f"{found['cluster']}: " + (fine if found["ok"] else "jobs cannot run as they should"))
    if not found["ok"]:
        raise typer.Exit(1)
