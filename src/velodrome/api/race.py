"""`race`: many jobs against each other. Plans a race, runs what is missing, and summarizes what is on disk."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome.analysis.compare import Row, compare
from velodrome.analysis.estimate import estimate
from velodrome.analysis.recommend import verdict
from velodrome.cluster.preflight import crowded
from velodrome.cluster.registry import DEFAULT, launcher_named, open_launcher
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.data.cache.fetch import using_mirror
from velodrome.errors import BadRequest
from velodrome.events.models import Event
from velodrome.machine import cores
from velodrome.run.execute import JobFailed
from velodrome.run.race import RaceFolder
from velodrome.run.race_check import CheckedRace, check_race
from velodrome.run.race_jobs import RaceObserver, Result, run_entries
from velodrome.run.yaml_files import read_yaml
from velodrome.spec.job import Job, Target
from velodrome.spec.race import Entry, Race, parse_race
from velodrome.spec.wording import in_words


def race(
    race: Race | str | Path | None = None,
    *,
    job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    repeat: int | None = None,
    naming: str | None = None,
    name: str | None = None,
    runs: str | Path = "runs",
    on: str = DEFAULT,
    warm: bool = True,
    dry_run: bool = False,
    skip_unavailable: bool = False,
    mirror: str | None = None,
    on_event: Callable[[str, dict[str, Any]], None] | None = None,
    on_job: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Race strategies, engines, batch and cluster sizes, and return the object that ``velodrome race --json`` prints.

    It has the race's name and ``path``, a row for each configuration (``rows``), the ``verdict``, the names of jobs
    that ``failed``, their messages (``failures``), why jobs were ``skipped``, and the path of a ``figure``. A job that
    fails ends no race. The same call again runs only what is missing.

    Args:
        race: a race, or a YAML file that holds one; the other fields are put on top of it.
        job: fields that all jobs share.
        vary: field names with their values; ``entry`` takes partial jobs.
        repeat: runs of each configuration, with seeds that count up.
        naming: how runs are named, ``plain`` or ``published``.
        name: name of the race's folder; by default the file's name, or one that follows from the fields.
        runs: folder that holds the race.
        on: the launcher: ``local``, or ``debug`` to train jobs of one process inside this program.
        warm: whether processes are forked from one that has imported the engine.
        dry_run: return the plan, jobs and expected seconds, and start nothing.
        skip_unavailable: leave out jobs for which this machine lacks a package, a device or memory, instead of
            refusing the race.
        mirror: folder or URL with the publisher's files of data sets.
        on_event: called with a run's name and each of its events.
        on_job: called with the result of each job when it ends, failed ones included.

    Raises:
        BadRequest: the race cannot run as requested; nothing was started.
    """
    merged = merge(race, job, vary, repeat, naming)
    with using_mirror(mirror):
        planned = plan_race(
            merged, name or default_name(race, merged), runs, on=on, warm=warm, leave_out=lambda _: skip_unavailable
        )
        if dry_run:
            return planned.as_json()
        return run_planned(planned, _Callbacks(on_event, on_job), warm=warm).as_json()


class _Callbacks(RaceObserver):
    """Passes what happens on to two plain functions."""

    def __init__(
        self, on_event: Callable[[str, dict[str, Any]], None] | None, on_job: Callable[[Result], None] | None
    ) -> None:
        self._on_event, self._on_job = on_event, on_job

    def event(self, entry: Entry, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(entry.name, event.as_json())

    def end(self, entry: Entry, result: Result, error: JobFailed | None) -> None:
        if self._on_job is not None:
            self._on_job(result)


@dataclass(frozen=True)
class PlannedRace:
    """A race that was checked: its jobs in the order they will run, and how long each is expected to take."""

    folder: RaceFolder
    race: Race
    entries: tuple[Entry, ...]
    #: Seconds by the name of a job; 0 for those that are finished.
    seconds: Mapping[str, float]
    #: Names of jobs that an earlier attempt finished.
    stored: frozenset[str]
    #: Whether every estimate is based on runs that were measured.
    measured: bool
    #: Whether the race on disk may have fewer jobs than this one.
    may_grow: bool = False
    #: The launcher.
    on: str = DEFAULT
    #: Why jobs are left out, by name, and the same in a line for each reason.
    skipped: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    #: What a person should know before it starts, a sentence each.
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        jobs = [{"run": one.name, "seconds": self.seconds[one.name], **one.job.model_dump()} for one in self.entries]
        return {
            "race": self.folder.path.name, "seconds": sum(self.seconds.values()), "jobs": jobs,
            "skipped": dict(self.skipped), "notes": list(self.notes),
        }


@dataclass(frozen=True)
class FinishedRace:
    """What a race ended with, read from disk, so that `report` and `recommend` agree with it."""

    path: Path
    rows: tuple[Row, ...]
    verdict: str
    figure: Path | None
    #: Messages of jobs that did not finish, by name.
    failures: Mapping[str, str]
    #: As in the plan.
    skipped: Mapping[str, str]
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "race": self.path.name, "path": str(self.path.resolve()), "rows": [row.as_json() for row in self.rows],
            "failed": list(self.failures), "failures": dict(self.failures), "skipped": dict(self.skipped),
            "figure": str(self.figure.resolve()) if self.figure else None, "verdict": self.verdict,
        }


def merge(
    race: Race | str | Path | None, job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None, repeat: int | None = None, naming: str | None = None,
) -> Race:
    """A race, or that of a YAML file, with other fields on top."""
    if isinstance(race, Race):
        content = race.model_dump(exclude_unset=True)
    else:
        content = read_yaml(Path(race)) if race is not None else {}
        if content and content.keys() <= Job.model_fields.keys():
            raise BadRequest(
                f"{str(race)!r} is a job: run it with `velodrome train {shlex.quote(str(race))}`, or put its fields "
                "under 'job', and what varies under 'vary'"
            )
        for key, example in (("job", "epochs: 5"), ("vary", "workers: [1, 2]")):
            if not isinstance(content.get(key) or {}, dict):
                given = in_words(content[key])
                raise BadRequest(f"{key} {given!r} in {str(race)!r}: give fields by name, such as '{example}'")
    fields = job.model_dump(exclude_unset=True) if isinstance(job, Job) else job
    content["job"] = {**(content.get("job") or {}), **(fields or {})}
    content["vary"] = {**(content.get("vary") or {}), **{field: list(values) for field, values in (vary or {}).items()}}
    if repeat is not None:
        content["repeat"] = repeat
    if naming is not None:
        content["naming"] = naming
    return parse_race(content)


def default_name(file: Race | str | Path | None, race: Race) -> str:
    """The same name for the same race, however often it is repeated, so that the same call resumes it: the file's, or a
    hash of what is raced."""
    if isinstance(file, str | Path) and (name := re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).lstrip("._-")):
        return name[:100]
    raced = race.model_dump_json(exclude_defaults=True, exclude={"repeat"})
    return f"race-{hashlib.sha256(raced.encode()).hexdigest()[:8]}"


def plan_race(
    race: Race, name: str, runs: str | Path, *, on: str = DEFAULT, warm: bool,
    leave_out: Callable[[CheckedRace], bool] = lambda checked: False, on_download: Progress | None = None,
) -> PlannedRace:
    """Check every job of a race and estimate how long it will take; starts nothing and writes nothing to `runs`.

    If some of the jobs cannot run here, `leave_out` is asked whether the others run without them. `on_download` is
    called while data is read.
    """
    folder = RaceFolder(Path(runs), name)
    race = folder.stamped(race)
    with open_launcher(on) as launcher:
        checked = check_race(race, launcher, folder.finished(), on_download)
    if checked.unavailable and not (checked.entries and leave_out(checked)):
        checked.refuse_unavailable()
    planned = plan_entries(folder, race, checked.entries, on=on, warm=warm)
    return replace(
        planned, skipped=checked.skipped, reasons=tuple(checked.reasons), notes=(*checked.notes, *planned.notes)
    )


def plan_entries(
    folder: RaceFolder, race: Race, entries: Sequence[Entry], *, on: str = DEFAULT, warm: bool,
    may_grow: bool = False,
) -> PlannedRace:
    """A plan for jobs that were checked already; refused if the folder holds another race."""
    folder.refuse_other(race, grown=may_grow)
    finished = folder.finished()
    seconds, measured = {}, True
    for entry in entries:
        about = catalogue.describe(entry.job.dataset, validation=entry.job.validation)
        pixels = math.prod(about.input_shape) if about.input_shape else None
        guess = estimate(entry.job, about.train, pixels, cores(), finished.values(), warm=warm)
        seconds[entry.name] = 0.0 if entry.name in finished else guess.seconds
        measured = measured and guess.measured
    stored = frozenset(entry.name for entry in entries if entry.name in finished)
    ahead = [entry.job for entry in entries if entry.name not in stored]
    warning = crowded(ahead) if launcher_named(on).here else None
    return PlannedRace(
        folder, race, tuple(entries), seconds, stored, measured, may_grow, on, notes=(warning,) if warning else ()
    )


def run_missing(planned: PlannedRace, observer: RaceObserver, *, warm: bool) -> dict[str, str]:
    """Run the jobs of a plan that are not finished; messages of those that failed, by name."""
    planned.folder.begin(planned.race, grown=planned.may_grow)
    results = run_entries(planned.folder, planned.entries, observer, on=planned.on, warm=warm)
    return {
        result["run"]: str((result.get("error") or {}).get("message", result["status"]))
        for result in results if result["status"] != "finished"
    }


def run_planned(planned: PlannedRace, observer: RaceObserver, *, warm: bool) -> FinishedRace:
    """Run what is missing, compare the configurations, draw them, and judge."""
    failures = run_missing(planned, observer, warm=warm)
    from velodrome.reporting.figures import race_figure
    from velodrome.reporting.load import load_race

    path = planned.folder.path
    record = load_race(path.parent, path.name)
    rows = compare(record.results, Target.parse(record.target) if record.target else None)
    figure = race_figure(rows, path / "race.png", title_of([entry.job for entry in planned.entries])) if rows else None
    return FinishedRace(
        path, tuple(rows), verdict(rows, record.target), figure, failures, planned.skipped, planned.reasons
    )


def title_of(jobs: Sequence[Job]) -> str:
    """What a race trains, with every value that occurs."""

    def every(field: str) -> str:
        values = list(dict.fromkeys(str(getattr(job, field)) for job in jobs))
        return ", ".join(values[:6]) + (" …" if values[6:] else "")

    epochs = every("epochs") + (" epoch" if every("epochs") == "1" else " epochs")
    return f"{every('model')} on {every('dataset')}, {epochs}, batch {every('batch_size')}"
