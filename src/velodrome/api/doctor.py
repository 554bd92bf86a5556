"""`doctor`: everything that would keep a job from running on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from velodrome.clusters.admission import complete, examined
from velodrome.clusters.launcher import Finding
from velodrome.clusters.registry import Where, launcher_named, open_launcher, where_of
from velodrome.data.fetch import using_mirror
from velodrome.job.job import Job
from velodrome.judge.conditions import SMALL_SHARE, emulation_lines
from velodrome.machine import cores, cores_of_others

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
    job = complete(job or Job.model_validate({}))
    where = where_of(job, on)
    with using_mirror(mirror), open_launcher(where) as launcher:
        found = launcher.examine(examined(job), measure=measure, notice=on_wait)
        code = launcher.sent_code(job)
    findings = [*found.findings]
    if launcher_named(where).here and all(finding.level == "ok" for finding in findings):
        findings = [*_other_programs(), *findings]
    lines = emulation_lines({"launcher": launcher.name, "cluster": found.emulation}) if found.emulation else []
    findings += [Finding("ok", "network", None, line) for line in lines]
    wrong = [finding for finding in findings if finding.level == "error"]
    return {
        "cluster": str(where), "launcher": launcher.name, "ok": not wrong,
        "findings": [finding.as_json() for finding in findings], "pairs": found.pairs,
        "code": code,
    }


def _other_programs() -> list[Finding]:
    """Whether other programs use this machine, and what that does to races."""
    used = cores_of_others(_LOOK_SECONDS)
    if used is None or used <= SMALL_SHARE * cores():
        return []
    return [Finding(
        "warning", "load", None, f"other programs use {used:.1f} of {cores()} core{'' if cores() == 1 else 's'}: races "
        "take longer, and small differences may stay undecided, because this load makes every result less certain",
        "close them before a race",
    )]
