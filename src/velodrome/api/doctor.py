"""`doctor`: everything that would keep a job from running on this machine or on a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from velodrome.clusters import environments, preflight
from velodrome.clusters.emulated.launcher import EmulatedLauncher
from velodrome.clusters.launcher import Finding, Launcher
from velodrome.clusters.registry import Where, open_launcher, where_of
from velodrome.clusters.remote.checks import DISK_BYTES
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.data import catalogue
from velodrome.data.fetch import using_mirror
from velodrome.errors import Unavailable, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.judge.emulation import emulation_lines
from velodrome.judge.foreign import SMALL_SHARE
from velodrome.machine import cores, cores_of_others
from velodrome.printable import bytes_text

#: How long it looks at what other programs use.
_LOOK_SECONDS = 1.0


def doctor(
    job: Job | None = None, *, on: Where | None = None, measure: bool = False, mirror: str | None = None,
    on_wait: Callable[[str], None] = lambda text: None,
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
        on_wait: called with a sentence while hosts are waited for, as in a queue.
    """
    job = resolve(job or Job.model_validate({}), environments.default_engine())
    where = where_of(job, on)
    with using_mirror(mirror), open_launcher(where) as launcher:
        preflight.check_job(job)
        pairs: list[dict[str, Any]] = []
        code: dict[str, Any] | None = None
        if isinstance(launcher, RemoteLauncher):
            sent = launcher.code(job)
            code = {"checksum": sent.checksum, "bytes": sent.size, "files": sent.listing()} if sent.files else None
            findings, pairs = launcher.examine(job, measure=measure, notice=on_wait)
        else:
            findings = _examine_here(launcher, job) or _other_programs()
            if measure and all(finding.level != "error" for finding in findings):
                more, pairs = _measure_here(launcher)
                findings += more
    wrong = [finding for finding in findings if finding.level == "error"]
    return {
        "cluster": str(where), "launcher": launcher.name, "ok": not wrong,
        "findings": [finding.as_json() for finding in findings], "pairs": pairs,
        "code": code,
    }


def _measure_here(launcher: Launcher) -> tuple[list[Finding], list[dict[str, Any]]]:
    """What emulated hosts measure between two of them, next to what was asked for; other hosts here are one."""
    if not isinstance(launcher, EmulatedLauncher):
        nothing = f"--on {launcher.name} has one host, so there is nothing to measure"
        return [Finding("ok", "network", None, nothing)], []
    try:
        facts = launcher.measured()
    except VelodromeError as error:
        return [Finding("error", "network", None, str(error))], []
    measured: Any = facts["measured"]
    if measured is None:
        return [Finding("warning", "network", None, "nothing was measured: that takes two hosts, and a machine that is "
                        "not too busy")], []
    first, second = launcher.host_names[:2]
    lines = emulation_lines({"launcher": launcher.name, "cluster": facts})
    pair = {"from": second, "to": first, "round_trip": measured["round_trip"], "bandwidth": measured["bandwidth"]}
    return [Finding("ok", "network", None, line) for line in lines], [pair]


def _other_programs() -> list[Finding]:
    """Whether other programs use this machine, and what that does to races."""
    used = cores_of_others(_LOOK_SECONDS)
    if used is None or used <= SMALL_SHARE * cores():
        return []
    return [Finding(
        "warning", "load", None, f"other programs use {used:.1f} of {cores()} core{'' if cores() == 1 else 's'}: races "
        "take longer, and their ranges become wider by what that may have changed, so that small differences stay open",
        "close them before a race",
    )]


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
