"""`velodrome plan`: the command to type on every machine to run a job without a launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli import completion
from velodrome.cli.options import JobCommand, JobFile, Json, Name, Place, Runs, TrustCode, job_from, with_job_options
from velodrome.cli.output import say, say_json

_PANEL = "Hosts"
Hosts = Annotated[
    str, typer.Option("--hosts", help="Addresses of the machines, separated by commas.", rich_help_panel=_PANEL)
]
Port = Annotated[int, typer.Option("--port", help="First port to use; the next ones follow.", rich_help_panel=_PANEL)]
Python = Annotated[
    str, typer.Option("--python", help="Interpreter on the machines that has velodrome.", rich_help_panel=_PANEL)
]

Format = Annotated[
    str | None,
    typer.Option("--format", help="Print a file that starts the job: slurm (sbatch), skypilot or compose (Docker).",
                 rich_help_panel=_PANEL, autocompletion=completion.one_of("slurm", "skypilot", "compose")),
]

CLASS = JobCommand


@with_job_options
def command(
    file: JobFile = None,
    hosts: Hosts = "127.0.0.1",
    port: Port = 29400,
    python: Python = "python",
    name: Name = None,
    runs: Runs = Path("runs"),
    format: Format = None,
    place: Place = None,
    trust_code: TrustCode = None,
    json: Json = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Print the exact command and environment that starts each process of a job, host by host.

    Paste each line into a shell on its host, in any order; training begins when all processes have connected.

    With --format it prints a file for Slurm, SkyPilot or Docker Compose instead; only the number of hosts matters then.

    Example: `velodrome plan --engine tensorflow --strategy multi-worker-mirrored --workers 3 --hosts 10.0.0.1,10.0.0.2,10.0.0.3`
    """  # noqa: E501
    from velodrome.api.plan import plan
    from velodrome.clusters.plan import parse_pins
    from velodrome.errors import BadRequest

    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if not names:
        raise BadRequest(f"--hosts {hosts!r}: name at least one host, for example --hosts 10.0.0.1,10.0.0.2")
    made = plan(job_from(file, fields, trust_code), names, port=port, python=python, name=name, runs=runs,
                format=format, place=parse_pins(place or []))
    if json:
        say_json(made)
        return
    if format is not None:
        say(made["file"].rstrip("\n"), longest=None)
        return
    for host in names:
        say(f"# on {host}")
        for process in made["processes"]:
            if process["host"] == host:
                say(f"# {process['role']} {process['rank']}\n{process['command']}", longest=None)  # to be pasted whole
        say()
