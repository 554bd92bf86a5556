"""`study.list`, `show` and `run`: published studies, run again, with our figures beside the published ones."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from velodrome.clusters.launcher import Launcher
from velodrome.clusters.registry import DEFAULT, Cluster, Where, open_cluster
from velodrome.data.base import BadData
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.names import expand
from velodrome.job.result import Result
from velodrome.machine import cores
from velodrome.races.costs import Costs
from velodrome.races.folder import RaceFolder, shuffled
from velodrome.races.jobs import run_jobs
from velodrome.races.plan import PlannedRace, plan_entries
from velodrome.races.request import RaceObserver
from velodrome.reporting.load import load_race
from velodrome.studies.load import scale_named, studies, study_named
from velodrome.studies.outcome import FigureComparison, Finding, compare_figures, findings
from velodrome.studies.plan import Choice, Site, StudyPlan, check_data, fetch_data, plan_study, this_machine


def list() -> builtins.list[dict[str, Any]]:
    """The published studies that can be run again."""
    return [
        {"name": study.name, "title": study.title, "source": study.source, "machines": study.machines,
         "configurations": len(study.combinations()), "figures": len(study.figures), "claims": len(study.claims)}
        for study in studies().values()
    ]


def show(name: str, scale: str = "full", *, mirror: str | None = None) -> dict[str, Any]:
    """What a study published, what would run here at a scale (smoke, small or full), and what is missing."""
    plan, rows = planned_rows(name, scale, mirror)
    return {**describe(plan), "configurations": [row.as_json() for row in rows],
            "claims": [claim.model_dump() for claim in plan.study.claims]}


def planned_rows(name: str, scale: str, mirror: str | None = None) -> tuple[StudyPlan, Sequence[FigureComparison]]:
    """A study fitted to this machine, and its configurations with their published figures."""
    with using_mirror(mirror):
        plan = plan_study(study_named(name), scale_named(scale), Choice())
    return plan, compare_figures(plan, [], cores())


def run(
    name: str,
    scale: str = "smoke",
    *,
    runs: str | Path = "runs",
    race_name: str | None = None,
    repeat: int = 1,
    dataset: str | None = None,
    data_url: str | None = None,
    bad_data: BadData = "fail",
    naming: str | None = None,
    on: Where = DEFAULT,
    dry_run: bool = False,
    mirror: str | None = None,
) -> dict[str, Any]:
    """Run a study again at a scale; the object that ``velodrome study run --json`` prints.

    What cannot run here is in ``missing`` with the way to add it, and the rest runs. The same call again runs only
    what is missing.

    Args:
        name: name of the study.
        scale: ``smoke`` (minutes), ``small`` (half an hour on two cores) or ``full``, as published.
        runs: folder that holds the race.
        race_name: name of the race; by default the study's and the scale's.
        repeat: runs of each configuration.
        dataset: another data set in place of the published one.
        data_url: read every data set NAME from shards at URL/NAME.
        bad_data: whether examples that cannot be used are left out (``skip``) or refused (``fail``).
        naming: how runs are named, ``plain`` or ``published``; by default as the study does.
        on: the launcher, as for ``race``.
        dry_run: whether to plan only and start nothing.
        mirror: folder or URL with the publisher's files of data sets.
    """
    choice = Choice(dataset, data_url, repeat, naming, bad_data)
    asked = StudyRequest(name, scale, choice, Path(runs), race_name, on=on, dry_run=dry_run, mirror=mirror)
    return run_study(asked, RaceObserver()).as_json()


@dataclass(frozen=True)
class StudyRequest:
    """A study at a scale, the choices that were made, and how it is to run."""

    name: str
    scale: str
    choice: Choice
    runs: Path
    race_name: str | None = None
    on: Where = DEFAULT
    dry_run: bool = False
    mirror: str | None = None


@dataclass(frozen=True)
class FinishedStudy:
    """Published figures beside ours, and what becomes of the published findings."""

    plan: StudyPlan
    folder: Path
    #: Names of the jobs that failed.
    failed: Sequence[str]
    configurations: Sequence[FigureComparison]
    findings: Sequence[Finding]
    #: Whether it ran, and was not only planned.
    ran: bool

    def as_json(self) -> dict[str, Any]:
        return {
            **describe(self.plan), "race": self.folder.name, "path": str(self.folder.resolve()),
            "failed": [*self.failed], "configurations": [row.as_json() for row in self.configurations],
            "claims": [one.as_json() for one in self.findings],
        }


def run_study(
    asked: StudyRequest, observer: RaceObserver, on_plan: Callable[[StudyPlan], None] = lambda plan: None
) -> FinishedStudy:
    """Fit a study to the machines that are there, run what is missing unless it is a dry run, and compare.

    `on_plan` is called with what can run and what is missing, also when that is everything.
    """
    with using_mirror(asked.mirror), open_cluster(asked.on) as cluster:
        with observer.planning():
            plan, race = _planned(asked, cluster, observer, on_plan)
        observer = observer.planned(race)
        if asked.dry_run:
            return _finished(plan, race, None)
        with observer.session():
            failures, _ = run_jobs(race, cluster, observer)
            return _finished(plan, race, failures)


def _planned(
    asked: StudyRequest, cluster: Cluster, observer: RaceObserver, on_plan: Callable[[StudyPlan], None]
) -> tuple[StudyPlan, PlannedRace]:
    """A study fitted to these machines, and its race; data is fetched unless it is a dry run, which checks all else."""
    study, size, choice = study_named(asked.name), scale_named(asked.scale), asked.choice
    if choice.data_url is not None and study.stored is None:
        raise BadRequest(f"--data-url {choice.data_url!r}: {study.name} did not read from stored shards; leave it out")
    folder = RaceFolder(asked.runs, asked.race_name or f"{study.name}-{size}")
    written, launcher, here = folder.written(), cluster.launcher, cluster.target.launcher.here
    if not here:
        launcher.prepare([])  # hosts that are out of reach are reported once, not for every job
    look = partial(check_data if asked.dry_run else fetch_data, choice, observer.data)
    plan = plan_study(study, size, choice, look=look, kept=written.fitted if written else None,
                      elsewhere=None if here else launcher)
    plan = replace(plan, site=_site(launcher, cluster.target, here=here))
    on_plan(plan)
    if plan.race is None:
        raise VelodromeError(f"nothing of {study.name} can run here yet")
    race = folder.stamped(plan.race)
    # Each job was checked when it was fitted to this machine; what was missing the last time may be there now.
    entries = shuffled(expand(race))
    costs = Costs.stored(folder, (entry.job for entry in entries), cluster)
    return plan, plan_entries(folder, race, entries, cluster, costs, may_grow=True)


def _finished(plan: StudyPlan, race: PlannedRace, failed: Iterable[str] | None) -> FinishedStudy:
    """Our figures beside the published ones, from what is on disk; `failed` is None if nothing ran."""
    path = race.folder.path
    ran = failed is not None
    record = load_race(path.parent, path.name, race.folder.store) if ran else None
    rows = record.judged().rows if record is not None else ()
    available = _cores_of(record.results if record is not None else ()) or plan.site.cores
    return FinishedStudy(
        plan, path, [*(failed or ())], compare_figures(plan, rows, available),
        findings(plan, rows, available) if ran else [], ran,
    )


def _cores_of(results: Iterable[Result]) -> int:
    """Cores of all hosts elsewhere that runs recorded; 0 if they ran on this machine."""
    clusters = [result.cluster for result in results if result.cluster is not None]
    hosts = {name: host.cores for cluster in clusters for name, host in cluster.hosts.items()}
    return sum(hosts.values())


def _site(launcher: Launcher, on: Where, *, here: bool) -> Site:
    """The machines of a launcher: hosts that are known have so many cores together."""
    machine = this_machine()
    if here:
        nodes = launcher.host_names
        return Site(f"{len(nodes)} emulated hosts on {machine.machines}", machine.cores) if nodes else machine
    counts = [*launcher.host_cores.values()]
    if not counts:  # of a cluster that names its hosts when a job begins
        return Site(f"the nodes of --on {on}", machine.cores)
    hosts = "1 host" if len(counts) == 1 else f"{len(counts)} hosts"
    return Site(f"{hosts} of --on {on} with {sum(counts)} cores", sum(counts))


def describe(plan: StudyPlan) -> dict[str, Any]:
    """A study at a scale as plain data, without figures."""
    return {
        "study": plan.study.name, "scale": plan.scale, "source": plan.study.source,
        "machines": {"published": plan.study.machines, "ours": plan.site.machines},
        "notes": plan.study.notes, "missing": [*plan.missing], "reductions": [*plan.reductions],
        "left_out": plan.left_out, "data": plan.data,
    }
