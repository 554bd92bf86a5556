"""Runs a study: fits it to the machines that are there, runs what is missing, and compares."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from velodrome.clusters import DEFAULT, Cluster, Where, open_cluster
from velodrome.clusters.launcher import Launcher
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import make_job
from velodrome.races.folder import RaceFolder
from velodrome.races.jobs import check_destination, run_jobs, send_finished
from velodrome.races.plan import PlannedRace, plan_fitted
from velodrome.races.request import RaceObserver
from velodrome.run import trust
from velodrome.studies.format import Study
from velodrome.studies.load import is_file, scale_named, study_named
from velodrome.studies.plan import Choice, Site, StudyPlan, check_data, fetch_data, plan_study, this_machine
from velodrome.studies.record import StudyRecord
from velodrome.studies.results import FinishedStudy, finished


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
    trust_code: Collection[str] = ()
    #: The address below which finished runs are copied when the race ends.
    artifacts: str | None = None


def admitted(name: str, trust_code: Collection[str]) -> Study:
    """The study of a name or a file; refused if a file names code that may not run."""
    study = study_named(name)
    if is_file(name):
        jobs = [make_job({key: value for key, value in fields.items() if key != "added"})
                for fields in study.combinations()]
        trust.admit_file(jobs, Path(name), (), trust_code)
    return study


def run_study(
    asked: StudyRequest, observer: RaceObserver, on_plan: Callable[[StudyPlan], None] = lambda plan: None
) -> FinishedStudy:
    """Fit a study to the machines that are there, run what is missing unless it is a dry run, and compare.

    `on_plan` is called with what can run and what is missing, also when that is everything.
    """
    check_destination(asked.artifacts)
    with using_mirror(asked.mirror), open_cluster(asked.on) as cluster:
        with observer.planning():
            plan, race = _planned(asked, cluster, observer, on_plan)
        observer = observer.planned(race)
        if asked.dry_run:
            return finished(plan, race, None)
        with observer.session():
            StudyRecord.of(plan).write(race.folder.path)
            failures, _ = run_jobs(race, cluster, observer)
            result = finished(plan, race, failures)
            return result if asked.artifacts is None else replace(result, artifacts=send_finished(
                race, asked.artifacts))


def _planned(
    asked: StudyRequest, cluster: Cluster, observer: RaceObserver, on_plan: Callable[[StudyPlan], None]
) -> tuple[StudyPlan, PlannedRace]:
    """A study fitted to these machines, and its race; data is fetched unless it is a dry run, which checks all else."""
    study, size, choice = admitted(asked.name, asked.trust_code), scale_named(asked.scale), asked.choice
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
    # What was missing the last time may be there now.
    return plan, plan_fitted(folder, plan.race, cluster)


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
