"""`list_engines`, environments of engines, and `doctor`: what can run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import all_forms, options_of
from velodrome.clusters import environments
from velodrome.clusters.environments import install
from velodrome.clusters.launcher import Finding
from velodrome.clusters.preflight import complete, examined
from velodrome.clusters.registry import Where, launcher_named, open_launcher, where_of
from velodrome.data.fetch import using_mirror
from velodrome.events.result import Cluster
from velodrome.job.job import Job
from velodrome.judge.conditions import SMALL_SHARE, emulation_lines
from velodrome.machine import cores, cores_of_others


def list_engines() -> list[dict[str, Any]]:
    """Every engine with its interpreter and strategies, as plain data; once for each framework it trains with."""
    return [_engine(engine) for engine in all_forms()]


def _engine(engine: Engine) -> dict[str, Any]:
    python = environments.interpreter_of(engine.key)
    try:
        versions = environments.probe(python).versions
    except environments.BrokenInterpreter:  # reported as missing
        versions = {}
    strategies = []
    for strategy in engine.strategies:
        missing = environments.missing(engine, strategy)
        strategies.append({
            "name": strategy.name,
            "description": strategy.description,
            "roles": list(strategy.roles),
            "synchronous": strategy.synchronous,
            "consistency": str(strategy.consistency),
            "consistencies": [str(model) for model in strategy.consistencies or (strategy.consistency,)],
            "options": {option.name: default for option, default in options_of(engine, strategy).items()},
            "implementation": {side: list(parts) for side, parts in asdict(strategy.implementation).items()},
            "available": not missing,
            "missing": missing,
        })
    return {
        "name": engine.name,
        "framework": engine.framework,
        "description": engine.description,
        "upstream": engine.upstream,
        "install": _installation(engine),
        "interpreter": str(python),
        "versions": {package: versions[package] for package in engine.packages if package in versions},
        "strategies": strategies,
    }


def _installation(engine: Engine) -> dict[str, Any] | None:
    """What the engine's own environment takes, and whether it is there for this version; None if it needs none."""
    own = engine.own_environment
    if own is None:
        return None
    return {
        "command": engine.install_command,
        "installed": environments.is_current(engine, environments.folder() / engine.key),
        "download_mb": own.download_mb, "disk_mb": own.disk_mb, "minutes": own.minutes,
    }


def install_engine(
    name: str, progress: Callable[[str], None] = lambda phrase: None, *, framework: str | None = None
) -> dict[str, Any]:
    """Create or repair the environment of an engine that cannot share ours; `progress` gets phrases."""
    installed = install.install(name, progress, framework=framework)
    return {"engine": name, "framework": framework, "interpreter": str(installed.interpreter),
            "changed": installed.changed, "seconds": round(installed.seconds, 1)}


def remove_engine(
    name: str, progress: Callable[[str], None] = lambda phrase: None, *, framework: str | None = None
) -> bool:
    """Remove the environment of an engine, by default of all its frameworks; `progress` gets phrases. Whether there was
    one."""
    return install.remove(name, progress, framework=framework)


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
    lines = emulation_lines(Cluster.model_validate(found.emulation))
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
