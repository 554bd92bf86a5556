"""`doctor`: everything that would keep a job from running on this machine or on a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from velodrome.cluster import environments, preflight
from velodrome.cluster.findings import Finding
from velodrome.cluster.launcher import Launcher
from velodrome.cluster.registry import DEFAULT, Where, open_launcher
from velodrome.cluster.remote.checks import DISK_BYTES
from velodrome.cluster.remote.launcher import RemoteLauncher
from velodrome.data import catalogue
from velodrome.data.cache.fetch import using_mirror
from velodrome.errors import Unavailable, VelodromeError
from velodrome.printable import bytes_text
from velodrome.spec.job import Job
from velodrome.spec.resolve import resolve


def doctor(
    job: Job | None = None, *, on: Where = DEFAULT, measure: bool = False, mirror: str | None = None
) -> dict[str, Any]:
    """Examine where a job would run; the object that ``velodrome doctor --json`` prints.

    It has ``ok``, the ``findings`` (each with ``level``, ``check``, ``host``, ``message``, ``fix`` and the ``sentence``
    that a person reads), the measured ``pairs`` of hosts, and the ``code`` that the job sends to each host:
    ``checksum``, ``bytes`` and ``files``, each with ``name`` and ``bytes``; None if it sends nothing.

    Args:
        job: the job that is to run, by default a small one.
        on: a launcher or cluster, as for ``train``.
        measure: whether round-trip time and bandwidth between hosts are measured.
        mirror: folder or URL with the publisher's files of a data set.
    """
    job = resolve(job or Job.model_validate({}), environments.default_engine())
    with using_mirror(mirror), open_launcher(on) as launcher:
        preflight.check_job(job)
        pairs: list[dict[str, Any]] = []
        code: dict[str, Any] | None = None
        if isinstance(launcher, RemoteLauncher):
            sent = launcher.code(job)
            code = {"checksum": sent.checksum, "bytes": sent.size, "files": sent.listing()} if sent.files else None
            findings, pairs = launcher.examine(job, measure=measure)
        else:
            findings = _examine_here(launcher, job)
    wrong = [finding for finding in findings if finding.level == "error"]
    return {
        "cluster": str(on), "launcher": launcher.name, "ok": not wrong,
        "findings": [finding.as_json() for finding in findings], "pairs": pairs,
        "code": code,
    }


def _examine_here(launcher: Launcher, job: Job) -> list[Finding]:
    """What keeps this machine from running a job: packages, memory, modules, disk and data."""
    found = []
    try:
        launcher.check(job)
    except Unavailable as error:
        found += [Finding("error", "versions", None, reason) for reason in error.reasons]
    except VelodromeError as error:
        found.append(Finding("error", "job", None, str(error)))
    free = shutil.disk_usage(Path.cwd()).free
    if free < DISK_BYTES:
        found.append(Finding("error", "disk", None, f"{Path.cwd()} has {bytes_text(free)} left, and a run needs "
                             f"{bytes_text(DISK_BYTES)}", "free some space, or give --runs another folder"))
    if job.script is None:
        try:
            catalogue.prepare(job.dataset, bad_data=job.bad_data)
        except VelodromeError as error:
            found.append(Finding("error", "data", None, str(error)))
    return found
