"""Clusters: the places where jobs can run, as `clusters.yaml` defines them; `doctor` examines one for a job."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from velodrome.catalog.registry import LISTED_BY, all_forms
from velodrome.catalog.registry import engines as known_engines
from velodrome.clusters import (
    LAUNCHERS,
    Where,
    clean_up,
    clusters,
    defined_target,
    definitions,
    environments,
    inline,
    launcher_named,
    launcher_type,
    launchers,
    open_launcher,
    target_of,
    where_of,
)
from velodrome.clusters.definitions import validated
from velodrome.clusters.environments import hosts
from velodrome.clusters.launcher import Finding
from velodrome.clusters.preflight import complete, examined
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, which_name
from velodrome.events.result import Cluster
from velodrome.job.job import Job
from velodrome.judge.conditions import SMALL_SHARE, emulation_lines
from velodrome.machine import cores, cores_of_others


def list() -> builtins.list[dict[str, Any]]:
    """Every launcher that needs no definition, and every cluster of clusters.yaml, with its file and its mistakes."""
    rows = [_row(launcher.name, launcher.name, description=launcher.description, options=launcher.inline)
            for launcher in launchers()]
    rows += [_row(name, name, error=error) for name, error in LAUNCHERS.broken().items()]
    for name, defined in clusters().items():
        row = _row(name, defined.launcher, file=str(defined.file))
        try:
            target = defined_target(defined)
            row |= {"description": target.launcher.description, "hosts": target.options.named_hosts}
        except BadRequest as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


def _row(name: str, launcher: str, **known: Any) -> dict[str, Any]:
    nothing = {"description": "", "options": "", "file": None, "hosts": None, "error": None}
    return {"name": name, "launcher": launcher, **nothing, **known}


def show(name: str) -> dict[str, Any]:
    """A cluster with all of its options, defaults included.

    Args:
        name: a cluster of clusters.yaml, or what ``--on`` takes.
    """
    target = target_of(name)
    defined = clusters().get(name)
    return {
        "name": name, "launcher": target.launcher.name, "description": target.launcher.description,
        "file": str(defined.file) if defined else None, "options": target.options.model_dump(),
    }


def add(
    name: str, where: str, options: Mapping[str, Any] | None = None, *, file: str | Path | None = None
) -> dict[str, Any]:
    """Add a cluster to a file, by default clusters.yaml of the current folder; refused if it is wrong or exists.

    Args:
        name: name of the new cluster.
        where: a launcher, with or without options behind a colon, such as ``ssh:host1,host2``.
        options: more of its options by name.
        file: the file to write.
    """
    base, _, text = where.partition(":")
    launcher = launcher_type(base, f"{where!r}")
    target = Path(file) if file is not None else definitions.sources()[0]
    fields = {**inline(launcher, text), **(options or {})}
    validated(launcher.options, fields, f"cluster {name!r}")
    if name in LAUNCHERS.names():
        raise BadRequest(f"cluster {name!r}: that is the name of a launcher; choose another one")
    definitions.add(name, base, fields, target)
    return {"name": name, "launcher": base, "file": str(target), "options": fields}


def prepare(
    name: str, *, engines: Sequence[str] | None = None, wheelhouse: str | Path | None = None
) -> dict[str, Any]:
    """Make a Python environment on every host of a cluster, with the versions that are installed here.

    Engines that need an environment of their own are left out: ``to_install`` has the commands that install them, to be
    run on each host.

    Args:
        name: a cluster whose hosts have agents, such as those of ``ssh``.
        engines: engines to install, by default all that are installed here; ``["none"]`` for none.
        wheelhouse: folder with wheels of all packages, for hosts that reach no package index.
    """
    known = [engine.name for engine in known_engines()]
    if unknown := [engine for engine in engines or () if engine not in (*known, "none")]:
        raise BadRequest(f"--engine {unknown[0]!r} is unknown; {which_name(unknown[0], known, LISTED_BY)}")
    asked = [
        engine for engine in all_forms()
        if (engine.name in engines if engines is not None else not environments.missing(engine, engine.strategies[0]))
    ]
    chosen = [engine.name for engine in asked if engine.own_environment is None]
    to_install = [engine.install_command for engine in asked if engine.own_environment is not None]
    with open_launcher(name) as launcher:
        made = launcher.prepare_hosts(chosen, Path(wheelhouse) if wheelhouse else None)
    if made is None:
        raise BadRequest(f"cluster {name!r} needs no environment: its processes use this machine's")
    return {"name": name, "hosts": made, "pins": hosts.pins(chosen), "to_install": to_install}


def clean(name: str | None = None) -> dict[str, Any]:
    """Remove what commands that were killed left behind, such as control groups and folders of emulated clusters.

    Args:
        name: a cluster on which runs may have left something too, such as one of ``k8s``.
    """
    removed = clean_up()
    if name is not None:
        with open_launcher(name) as launcher:
            removed += launcher.remove_leftovers()
    return {"removed": removed}


def permissions(name: str) -> str:
    """What an administrator gives a person who uses a cluster: the Role of Kubernetes, as YAML.

    Args:
        name: a cluster of clusters.yaml, or what ``--on`` takes.
    """
    with open_launcher(name) as launcher:
        return launcher.permissions()


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
        examination = launcher.examine(examined(job), measure=measure, notice=on_wait)
        code = launcher.sent_code(job)
    findings = [*examination.findings]
    if launcher_named(where).here and all(finding.level == "ok" for finding in findings):
        findings = [*_other_programs(), *findings]
    lines = emulation_lines(Cluster.model_validate(examination.emulation))
    findings += [Finding("ok", "network", None, line) for line in lines]
    wrong = [finding for finding in findings if finding.level == "error"]
    return {
        "cluster": str(where), "launcher": launcher.name, "ok": not wrong,
        "findings": [finding.as_json() for finding in findings], "pairs": examination.pairs,
        "code": code,
    }


def _other_programs() -> builtins.list[Finding]:
    """Whether other programs use this machine, and what that does to races."""
    used = cores_of_others(_LOOK_SECONDS)
    if used is None or used <= SMALL_SHARE * cores():
        return []
    return [Finding(
        "warning", "load", None, f"other programs use {used:.1f} of {cores()} core{'' if cores() == 1 else 's'}: races "
        "take longer, and small differences may stay undecided, because this load makes every result less certain",
        "close them before a race",
    )]
