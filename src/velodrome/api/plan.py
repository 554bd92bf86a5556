"""`plan`: the command of every process of a job, to start it without a launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velodrome.clusters.admission import examined
from velodrome.clusters.manifests import FORMATS, host_names
from velodrome.clusters.plan import Placement, consecutive_ports, make_plan, manual_command
from velodrome.clusters.plan import place as placed
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.names import check_name, default_name
from velodrome.job.resolve import roles_of


def plan(
    job: Job,
    hosts: Sequence[str],
    *,
    port: int = 29400,
    python: str = "python",
    name: str | None = None,
    runs: str | Path = "runs",
    format: str | None = None,
    place: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The command of every process of a job; the object that ``velodrome plan --json`` prints. Starts nothing.

    Args:
        job: what to train and how.
        hosts: addresses of the machines.
        port: first port to use; the next ones follow.
        python: interpreter on the machines that has velodrome.
        name: name of the run; by default made from the job and the time.
        runs: folder on the machines that holds the runs.
        format: ``slurm``, ``skypilot`` or ``compose``: ``file`` is then a file that starts the job there; as many
            hosts are asked for as ``hosts`` has, and their names do not matter.
        place: hosts of roles, or of processes such as ``worker:1``, by name.
    """
    if format is not None and format not in FORMATS:
        raise BadRequest(f"--format {format!r} is unknown; choose from {', '.join(FORMATS)}")
    job = examined(job)
    if not hosts:
        raise BadRequest("no hosts: name at least one, for example '10.0.0.1'")
    if not 1 <= port <= 65000:
        raise BadRequest(f"--port {port}: choose one from 1 to 65000")
    if twice := [host for host in hosts if list(hosts).count(host) > 1]:
        raise BadRequest(f"--hosts: {twice[0]!r} is named twice; name each host once, and processes that are more than "
                         "hosts share them")
    placed(roles_of(job), hosts, Placement(pins=place or {}))  # refuses pins with the names that were given
    named = host_names(len(hosts)) if format is not None else list(hosts)
    own = dict(zip(hosts, named, strict=True))
    pins = {who: ",".join(own.get(one.strip(), one.strip()) for one in where.split(",")) for who, where in
            (place or {}).items()}
    made = make_plan(check_name(name) if name else default_name(job), job, named, consecutive_ports(port),
                     placement=Placement(pins=pins))
    if format is not None:
        return {"run": made.run, "format": format, "file": FORMATS[format](made, Path(runs), python)}
    return {
        "run": made.run,
        "processes": [
            {"host": process.host, "role": process.role, "rank": process.rank,
             "command": manual_command(made, process, Path(runs), python)}
            for process in made.processes
        ],
    }
