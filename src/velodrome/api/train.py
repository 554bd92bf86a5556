"""`train`, `resume`, `attach` and `plan`: one job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from velodrome.clusters import Where, open_launcher, target_of, where_of
from velodrome.clusters.plan import Placement, Plan, consecutive_ports, make_plan, manual_command
from velodrome.clusters.plan import place as placed
from velodrome.clusters.preflight import examined
from velodrome.data.base import Progress
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.names import check_name, default_name
from velodrome.job.resolve import roles_of
from velodrome.run import execute, pods, trust
from velodrome.run.artifacts import check_address, send
from velodrome.run.manual import FORMATS, host_names
from velodrome.run.store import OpenRun, Store
from velodrome.run.supervisor import Listener, silent

OnEvent = Callable[[dict[str, Any]], None]
OnStart = Callable[[Plan, OpenRun], None]


def _listener(on_event: OnEvent | None) -> Listener:
    """Return what passes each event on as a plain object."""
    if on_event is None:
        return silent
    return lambda state, event: on_event(event.as_json())


def train(
    job: Job,
    *,
    name: str | None = None,
    runs: str | Path = "runs",
    on: Where | None = None,
    mirror: str | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
    on_download: Progress | None = None,
    artifacts: str | None = None,
) -> dict[str, Any]:
    """Train one job and return its result, the object that ``velodrome train --json`` prints.

    Args:
        job: what to train and how.
        name: name of the run's folder; by default made from the job and the time.
        runs: folder that holds the runs.
        on: where processes run: ``local``, ``debug`` to train a job of one process inside this program,
            ``emulated``, ``ssh``, ``ray``, ``slurm`` or ``k8s`` with options behind a colon, as ``ssh:HOST,HOST``, or
            a cluster of ``clusters.yaml``; by default where the job says, else ``local``.
        mirror: folder or URL with the publisher's files of a data set.
        on_event: called with every event, as the reference of events describes it, while the job runs.
        on_start: called with the plan and the run's folder before the first process starts.
        on_download: called with bytes done, bytes in total and a label while a data set is fetched.
        artifacts: address below which the run is copied after training, as ``s3://bucket/path``; the result then has it
            as ``artifacts``.

    Raises:
        BadRequest: the job cannot run as requested; nothing was started.
        RunFailed: the run ended early; its folder records what happened.
    """
    if artifacts is not None:
        check_address(artifacts)
    with using_mirror(mirror), open_launcher(where_of(job, on)) as launcher:
        result = execute.execute(
            job, store=Store(Path(runs)), launcher=launcher, name=name, listener=_listener(on_event),
            on_start=on_start, progress=on_download,
        )
    told = result.as_json()
    return told if artifacts is None else {**told, "artifacts": send(Path(told["path"]), artifacts)}


def resume(
    name: str,
    *,
    runs: str | Path = "runs",
    on: Where | None = None,
    mirror: str | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
    trust_code: Collection[str] = (),
) -> dict[str, Any]:
    """Resume a run that did not finish from its newest checkpoint and return its result.

    Args:
        name: name of the run.
        runs: folder that holds the runs.
        on: the launcher, as for ``train``.
        mirror: folder or URL with the publisher's files of a data set.
        on_event: called with every event, as the reference of events describes it, while the job runs.
        on_start: called with the plan and the run's folder before the first process starts.
        trust_code: code that the run names and that may run, as ``module:function``; not needed for what was started on
            this machine.
    """
    store = Store(Path(runs))
    job = admit(name, store, trust_code, launched=on is None)
    with using_mirror(mirror), open_launcher(where_of(job, on)) as launcher:
        result = execute.resume(
            name, store=store, launcher=launcher, listener=_listener(on_event), on_start=on_start
        )
    return result.as_json()


def admit(name: str, store: Store, trust_code: Collection[str], *, launched: bool) -> Job:
    """The job of a stored run whose code may run; `launched` if the run also says where."""
    run = store.get(name)
    job = run.job()
    trust.admit_stored(job, f"run {run.name!r}", run.path, trust_code, launched=launched)
    return job


def attach(
    name: str, *, runs: str | Path = "runs", on_event: OnEvent | None = None, on_start: OnStart | None = None,
    trust_code: Collection[str] = (),
) -> dict[str, Any]:
    """Supervise a run whose command was killed while its processes run on, such as on Slurm; its result.

    Args:
        name: name of the run.
        runs: folder that holds the runs.
        on_event: called with every event that was not recorded yet.
        on_start: called with the plan and the run's folder.
        trust_code: as for ``resume``.
    """
    admit(name, Store(Path(runs)), trust_code, launched=True)
    return execute.attach(name, store=Store(Path(runs)), listener=_listener(on_event), on_start=on_start).as_json()


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
    on: Where | None = None,
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
            hosts are asked for as ``hosts`` has, and their names do not matter. ``k8s`` or ``jobset``: manifests of
            Kubernetes with a pod for each process, whatever ``hosts`` has.
        place: hosts of roles, or of processes such as ``worker:1``, by name.
        on: for ``k8s`` and ``jobset``: image and options of the pods, as for ``train``.
    """
    if format is not None and format not in (known := [*FORMATS, *pods.KINDS]):
        raise BadRequest(f"--format {format!r} is unknown; choose from {', '.join(known)}")
    if on is not None and format not in pods.KINDS:
        raise BadRequest(f"--on {str(on)!r}: only --format {' and --format '.join(pods.KINDS)} need it")
    job = examined(job)
    if format is not None and format in pods.KINDS:
        return _pods(format, job, on, port=port, python=python, name=name, runs=runs, place=place)
    if not hosts:
        raise BadRequest("no hosts: name at least one, for example '10.0.0.1'")
    _check_port(port)
    if twice := [host for host in hosts if list(hosts).count(host) > 1]:
        raise BadRequest(f"--hosts: {twice[0]!r} is named twice; name each host once; if there are more processes "
                         "than hosts, they share them")
    placed(roles_of(job), hosts, Placement(pins=place or {}))  # refuses pins with the names that were given
    named = host_names(len(hosts)) if format is not None else list(hosts)
    own = dict(zip(hosts, named, strict=True))
    pins = {who: ",".join(own.get(host.strip(), host.strip()) for host in where.split(",")) for who, where in
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


def _check_port(port: int) -> None:
    if not 1 <= port <= 65000:
        raise BadRequest(f"--port {port}: choose one from 1 to 65000")


def _pods(
    form: str, job: Job, on: Where | None, *, port: int, python: str, name: str | None, runs: str | Path,
    place: Mapping[str, str] | None,
) -> dict[str, Any]:
    """The plan of a job whose processes are pods."""
    _check_port(port)
    if place:
        raise BadRequest("--place: each process has a pod of its own; choose nodes by node_selector instead")
    run = check_name(name) if name else default_name(job)
    file = pods.file_of(form, run, job, target_of(where_of(job, on)), asked=on is not None, port=port,
                        runs=Path(runs), python=python)
    return {"run": run, "format": form, "file": file}
