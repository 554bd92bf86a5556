"""`plan`: the command of every process of a job, to start it without a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from velodrome.cluster.environments import default_engine
from velodrome.cluster.plan import consecutive_ports, make_plan, manual_command
from velodrome.cluster.preflight import check_job
from velodrome.errors import BadRequest
from velodrome.spec.job import Job
from velodrome.spec.names import check_name, default_name
from velodrome.spec.resolve import resolve


def plan(
    job: Job,
    hosts: Sequence[str],
    *,
    port: int = 29400,
    python: str = "python",
    name: str | None = None,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """The command of every process of a job; the object that ``velodrome plan --json`` prints. Starts nothing.

    Args:
        job: what to train and how.
        hosts: addresses of the machines.
        port: first port to use; the next ones follow.
        python: interpreter on the machines that has velodrome.
        name: name of the run; by default made from the job and the time.
        runs: folder on the machines that holds the runs.
    """
    job = resolve(job, default_engine())
    check_job(job)
    if not hosts:
        raise BadRequest("no hosts: name at least one, for example '10.0.0.1'")
    if not 1 <= port <= 65000:
        raise BadRequest(f"--port {port}: choose one from 1 to 65000")
    made = make_plan(check_name(name) if name else default_name(job), job, list(hosts), consecutive_ports(port))
    return {
        "run": made.run,
        "processes": [
            {"host": process.host, "role": process.role, "rank": process.rank,
             "command": manual_command(made, process, Path(runs), python)}
            for process in made.processes
        ],
    }
