"""Starts a run on hosts: sends code, checkpoints and weights, prepares the data there, and starts the processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from velodrome.catalog.segments import pattern_of_run
from velodrome.clusters.plan import Plan, command, environment
from velodrome.clusters.remote import RemoteOptions
from velodrome.clusters.remote.code import Code
from velodrome.clusters.remote.group import HostRun, RemoteGroup
from velodrome.clusters.remote.link import HostError, Link
from velodrome.variables import INSTEAD, JOB, MEASURE, TOKEN

_PREPARE = "velodrome.training.host"
_MIRROR = "VELODROME_DATA_MIRROR"
#: Variables of this machine that belong to the job and not to the machine.
_PASSED_ON = (MEASURE, INSTEAD, "VELODROME_STRICT_EVENTS")


@dataclass(frozen=True)
class Request:
    """One attempt at a plan on hosts."""

    plan: Plan
    #: The run's folder on this machine.
    folder: Path
    token: str
    code: Code
    options: RemoteOptions
    #: The interpreter of each host.
    pythons: Mapping[str, str]
    resume: bool


def prepare_host(link: Link, request: Request) -> HostRun:
    """Bring everything that processes need to a host; `HostError` names what failed there."""
    code = send_code(link, request.code)
    run = HostRun(link, send_run(link, request), code, request.pythons[link.host])
    prepare_data(run, request)
    return run


def release(run: HostRun, request: Request) -> None:
    """Remove what `prepare_host` made for a run that does not start."""
    if request.options.shared_dir is None:
        run.link.ask("stop", token=request.token, folder=run.folder, segments="")


def send_code(link: Link, code: Code) -> str:
    """Unpack the user's code on a host, unless the same code is there; where it lies, empty if there is none."""
    if not code.files:
        return ""
    target = f"code/{code.checksum}"
    answer, _ = link.ask("has", path=target, use=True)
    if not answer["there"]:
        archive = f"{target}.{os.urandom(4).hex()}.tar"
        link.put(code.archive, archive)
        answer, _ = link.ask("unpack", path=archive, to=target, seconds=300.0)
    return str(answer["path"])


def send_run(link: Link, request: Request) -> str:
    """Make the run's folder on a host, with the checkpoints to resume from; where it lies."""
    if request.options.shared_dir is not None:
        folder = str(request.folder.resolve())
        answer, _ = link.ask("has", path=folder)
        if not answer["there"]:
            raise HostError(f"{link.host!r} does not see the run's folder {folder}, although shared_dir is set; let "
                            "--runs lie below the shared folder")
        return folder
    folder = f"{link.facts['folder']}/{request.token}"
    link.put(b"", f"{folder}/logs/.started")
    if request.resume:
        for path in sorted((request.folder / "checkpoints").glob("*.safetensors")):
            link.put(path, f"{folder}/checkpoints/{path.name}")
    link.ask("known", folder=folder)
    link.ask("watch", token=request.token, folder=folder, patterns=["checkpoints/*.safetensors"])
    return folder


def prepare_data(run: HostRun, request: Request) -> None:
    """Let a host fetch and check the data of the job, once for all of its processes."""
    variables = {**host_environment(run, request), JOB: request.plan.job.model_dump_json(exclude_defaults=True)}
    ran = run.link.run(
        [run.python, "-P", "-m", _PREPARE], limit=request.options.data_timeout, cwd=run.code or run.folder,
        environment=variables,
    )
    if ran.failed:
        raise HostError(f"{run.link.host!r} cannot read the data {request.plan.job.dataset!r}: {ran.reason}")


def host_environment(run: HostRun, request: Request) -> dict[str, str]:
    """The variables of every process on a host, on top of the host's own."""
    mirror = request.options.mirror or os.environ.get(_MIRROR, "")
    own = {_MIRROR: mirror} if request.options.mirror or "://" in mirror else {}
    own |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if run.code:
        own["PYTHONPATH"] = run.code
    return own | request.options.environment


def start_all(request: Request, group: RemoteGroup) -> None:
    """Start all processes in the order of the plan, without waiting for one before the next."""
    plan, asked = request.plan, []
    for process in plan.processes:
        run, link = group.hosts[process.host], group.link_of(process)
        asked.append((link, link.send(
            "start", id=process.file_name, token=request.token, cwd=run.code or run.folder,
            words=command(run.python, plan, process, Path(run.folder), resume=request.resume),
            environment={**host_environment(run, request), **environment(plan, process), TOKEN: request.token},
            log=f"{run.folder}/logs/{process.file_name}.log", segments=pattern_of_run(request.token),
        )))
    for link, number in asked:
        link.wait(number, "start")
