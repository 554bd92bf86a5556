"""`velodrome plan`: what to type on every machine to run a job without the launcher."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from velodrome.cli.options import JobFile, Json, Name, Runs, job_from, with_job_options

Hosts = Annotated[str, typer.Option("--hosts", help="Addresses of the machines, separated by commas.")]
Port = Annotated[int, typer.Option("--port", help="First port to use; further ones follow it.")]
Python = Annotated[str, typer.Option("--python", help="Python of the machines that has velodrome installed.")]


@with_job_options
def command(
    file: JobFile = None,
    hosts: Hosts = "127.0.0.1",
    port: Port = 29400,
    python: Python = "python",
    name: Name = None,
    runs: Runs = Path("runs"),
    json: Json = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Print, for each host, the exact command and environment that starts its part of a job.

    Paste each line into a shell on its host, in any order; the job runs when all are there.

    Example: `velodrome plan --engine tensorflow --strategy multi-worker-mirrored --workers 3 --hosts 10.0.0.1,10.0.0.2,10.0.0.3`
    """  # noqa: E501
    import json as json_module

    from velodrome.cluster.plan import make_plan, manual_command
    from velodrome.cluster.preflight import check_job
    from velodrome.errors import BadRequest
    from velodrome.spec.names import check_name, default_name
    from velodrome.spec.resolve import resolve

    job = resolve(job_from(file, fields))
    check_job(job)
    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if not names:
        raise BadRequest(f"--hosts {hosts!r}: name at least one host, for example --hosts 10.0.0.1,10.0.0.2")
    if not 1 <= port <= 65000:
        raise BadRequest(f"--port {port}: choose one from 1 to 65000")
    ports = itertools.count(port)
    made = make_plan(check_name(name) if name else default_name(job), job, names, port=lambda: next(ports))
    lines = [(process, manual_command(made, process, runs, python)) for process in made.processes]
    if json:
        print(json_module.dumps({
            "run": made.run,
            "processes": [
                {"host": process.host, "role": process.role, "rank": process.rank, "command": line}
                for process, line in lines
            ],
        }))
        return
    for host in names:
        print(f"# on {host}")
        for process, line in lines:
            if process.host == host:
                print(f"# {process.name}\n{line}")
        print()
