"""`study.list`, `show` and `run`: published studies, run again, with our figures beside the published ones."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from velodrome.api.race import run_missing
from velodrome.api.race_plan import PlannedRace, plan_entries
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.registry import DEFAULT, Where, launcher_named, open_launcher
from velodrome.data.base import BadData, Progress
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.names import expand
from velodrome.judge.compare import compare
from velodrome.machine import cores
from velodrome.races.folder import RaceFolder, shuffled
from velodrome.races.observer import RaceObserver
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
    with using_mirror(mirror):
        planned = prepare(name, scale, choice, runs, race_name, on=on, dry_run=dry_run)
        failures = None if dry_run else run_missing(planned.race, RaceObserver(), warm=True)
    return conclude(planned, failures).as_json()


@dataclass(frozen=True)
class PlannedStudy:
    """A study and the race that runs it here."""

    plan: StudyPlan
    race: PlannedRace


@dataclass(frozen=True)
class FinishedStudy:
    """Published figures beside ours, and what becomes of the published findings."""

    plan: StudyPlan
    folder: Path
    #: Names of the jobs that failed.
    failed: Sequence[str]
    configurations: Sequence[FigureComparison]
    findings: Sequence[Finding]

    def as_json(self) -> dict[str, Any]:
        return {
            **describe(self.plan), "race": self.folder.name, "path": str(self.folder.resolve()),
            "failed": [*self.failed], "configurations": [row.as_json() for row in self.configurations],
            "claims": [one.as_json() for one in self.findings],
        }


def prepare(
    name: str,
    scale: str,
    choice: Choice,
    runs: str | Path,
    race_name: str | None,
    *,
    dry_run: bool,
    on: Where = DEFAULT,
    on_plan: Callable[[StudyPlan], None] | None = None,
    on_download: Progress | None = None,
) -> PlannedStudy:
    """Fit a study to this machine and plan its race; fetches data unless it is a dry run, which checks all else.

    `on_plan` is called with what can run and what is missing, also when that is everything; `on_download` while data
    is fetched and read.
    """
    kind = launcher_named(on)  # refused before data is fetched
    study, size = study_named(name), scale_named(scale)
    if choice.data_url is not None and study.stored is None:
        raise BadRequest(f"--data-url {choice.data_url!r}: {study.name} did not read from stored shards; leave it out")
    folder = RaceFolder(Path(runs), race_name or f"{study.name}-{size}")
    written = folder.written()
    with open_launcher(on) as launcher:
        if not kind.here:
            launcher.prepare([])  # hosts that are out of reach are reported once, not for every job
        plan = plan_study(study, size, choice, look=partial(check_data if dry_run else fetch_data, choice, on_download),
                          kept=written.fitted if written else None, elsewhere=None if kind.here else launcher)
        plan = replace(plan, site=_site(launcher, on, here=kind.here))
    if on_plan is not None:
        on_plan(plan)
    if plan.race is None:
        raise VelodromeError(f"nothing of {study.name} can run here yet")
    race = folder.stamped(plan.race)
    # Each job was checked when it was fitted to this machine; what was missing the last time may be there now.
    entries = shuffled(expand(race))
    return PlannedStudy(plan, plan_entries(folder, race, entries, on=on, warm=True, may_grow=True))


def conclude(planned: PlannedStudy, failed: Iterable[str] | None) -> FinishedStudy:
    """Our figures beside the published ones, from what is on disk; `failed` is None if nothing ran."""
    path = planned.race.folder.path
    ran = failed is not None
    results = load_race(path.parent, path.name).results if ran else []
    rows = compare(results)
    available = _cores_of(results) or planned.plan.site.cores
    return FinishedStudy(
        planned.plan, path, [*(failed or ())], compare_figures(planned.plan, rows, available),
        findings(planned.plan, rows, available) if ran else [],
    )


def _cores_of(results: Iterable[Mapping[str, Any]]) -> int:
    """Cores of all hosts elsewhere that runs recorded; 0 if they ran on this machine."""
    recorded = [(result.get("cluster") or {}).get("hosts") for result in results]
    hosts = {name: about["cores"] for found in recorded if isinstance(found, dict) for name, about in found.items()}
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
