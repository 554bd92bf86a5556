"""Plans a race: checks every job, and estimates how long it will take. Starts nothing but a second of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from velodrome.clusters import Cluster
from velodrome.clusters.preflight import crowded
from velodrome.errors import BadRequest
from velodrome.job.names import expand
from velodrome.job.race import Entry, Race
from velodrome.job.resolve import has_baselines
from velodrome.job.script import batch_notes
from velodrome.judge.budget import Affordable
from velodrome.judge.estimate import Estimate, basis_of
from velodrome.races.check import check_race, complete_race
from velodrome.races.costs import MOST_SECONDS, Costs, worth_measuring
from velodrome.races.folder import RaceFolder, shuffled
from velodrome.races.limits import Budget, fewer_steps_note
from velodrome.races.request import SILENT, RaceObserver, RaceRequest


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
    #: What each configuration is expected to take.
    estimates: Mapping[str, Estimate]
    #: Whether the race on disk may have fewer jobs than this one.
    may_grow: bool = False
    #: Why jobs are left out, by name, and the same in a line for each reason.
    skipped: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    #: What a person should know before it starts, a sentence each.
    notes: tuple[str, ...] = ()
    #: Which configurations fit its budget; None if it has none, or if jobs may run at the same time.
    affordable: Affordable | None = None

    @property
    def basis(self) -> str:
        """What the expected seconds of the jobs to come rest on, in words."""
        ahead = {entry.configuration: None for entry in self.entries if entry.name not in self.stored}
        return basis_of(self.estimates[key] for key in ahead or self.estimates)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most seconds of the jobs to come, where some are guessed and the guess is wrong."""
        ahead = [entry for entry in self.entries if entry.name not in self.stored]
        bounds = [self.estimates[entry.configuration].bounds(entry.job) for entry in ahead]
        return sum(least for least, _ in bounds), sum(most for _, most in bounds)

    @property
    def guessed(self) -> frozenset[str]:
        """Configurations whose estimates rest on nothing that was measured."""
        return frozenset(key for key, estimate in self.estimates.items() if not estimate.measured)

    @property
    def unknown_scripts(self) -> bool:
        """Whether the race has a script of which nothing is known."""
        return any(entry.job.script is not None and not self.estimates[entry.configuration].measured
                   for entry in self.entries)

    @property
    def promise(self) -> dict[str, float]:
        """Examples per second that are expected, by the name of a job."""
        return {entry.name: self.estimates[entry.configuration].rate for entry in self.entries}

    @property
    def certain(self) -> tuple[Entry, ...]:
        """The jobs that run in any case: those of a race that ends when it is sure are its first repetitions."""
        return tuple(entry for entry in self.entries if entry.repetition <= self.race.repeat)

    @property
    def configurations(self) -> int:
        return len({entry.configuration for entry in self.entries})

    @property
    def most_seconds(self) -> float:
        """The longest that it is expected to take."""
        total = sum(self.seconds.values())
        return total if self.race.budget is None else min(total, self.race.budget)

    def as_json(self) -> dict[str, Any]:
        certain = self.certain
        jobs = [{"run": entry.name, "seconds": self.seconds[entry.name], **entry.job.model_dump()} for entry in certain]
        most = {"most_jobs": len(self.entries), "most_seconds": self.most_seconds} if self.race.until_sure else {}
        return {
            "race": self.folder.path.name, "seconds": sum(self.seconds[entry.name] for entry in certain), "jobs": jobs,
            "basis": self.basis, "skipped": dict(self.skipped), "notes": list(self.notes), **most,
        }


def plan_race(asked: RaceRequest, cluster: Cluster, observer: RaceObserver = SILENT) -> PlannedRace:
    """Check every job of a race and estimate how long it will take; writes nothing.

    If some of the jobs cannot run here, the request or the observer says whether the others run without them. What
    could only be guessed is trained for a second, if that was asked for, or matters and takes a few seconds. Nothing
    else starts.
    """
    race, folder = asked.race, RaceFolder(asked.runs, asked.name)
    shared = race.job.get("on")
    if asked.on is not None and "on" in race.vary:
        raise BadRequest(f"--on {str(asked.on)!r}: the race varies where its jobs run; leave out --on, or what varies")
    notes: tuple[str, ...] = ()
    if asked.complete and not race.vary:
        launcher = cluster.named(shared) if asked.on is None and isinstance(shared, str) else cluster.launcher
        race, notes = complete_race(race, folder, launcher)
    if race.baseline is None and folder.written() is None and has_baselines(race.vary, race.job):
        race = race.model_copy(update={"baseline": True})
    race = folder.stamped(race)
    raced = race
    if asked.on is not None:  # which wins over the field, and the stored race keeps the field
        raced = race.model_copy(update={"job": {key: value for key, value in race.job.items() if key != "on"}})
    checked = check_race(raced, cluster, folder.finished(), observer.data)
    if checked.unavailable:
        able = len(checked.entries)
        if not able or not (asked.skip_unavailable
                            or observer.skips(checked.reasons, able, able + len(checked.skipped))):
            checked.refuse_unavailable()
    jobs = [entry.job for entry in checked.entries]
    costs = Costs.stored(folder, jobs, cluster, warm=asked.warm)
    planned = plan_entries(folder, race, checked.entries, cluster, costs)
    if asked.measure or (asked.measure is None and worth_measuring((entry.job for entry in planned.certain), costs)):
        ahead = {entry.configuration: entry.job for entry in checked.entries if entry.name not in planned.stored}
        costs = costs.measuring([*ahead.values()], cluster, limit=None if asked.measure else MOST_SECONDS,
                                note=observer.note, on_download=observer.data)
        if costs.measured or costs.tried:
            planned = plan_entries(folder, race, checked.entries, cluster, costs)
    return replace(
        planned, skipped=checked.skipped, reasons=tuple(checked.reasons),
        notes=(*notes, *checked.notes, *planned.notes, *batch_notes(jobs)),
    )


def plan_fitted(folder: RaceFolder, fitted: Race, cluster: Cluster) -> PlannedRace:
    """A plan for a race whose jobs were checked when they were fitted to these machines; it may have grown since."""
    race = folder.stamped(fitted)
    entries = shuffled(expand(race))
    costs = Costs.stored(folder, (entry.job for entry in entries), cluster)
    return plan_entries(folder, race, entries, cluster, costs, may_grow=True)


def plan_entries(
    folder: RaceFolder, race: Race, entries: Sequence[Entry], cluster: Cluster, costs: Costs, *, may_grow: bool = False
) -> PlannedRace:
    """A plan for jobs that were checked already; refused if the folder holds another race."""
    folder.refuse_other(race, grown=may_grow)
    finished = folder.finished()
    jobs = {entry.configuration: entry.job for entry in entries}
    estimates = {key: costs.of(job) for key, job in jobs.items()}
    seconds = {
        entry.name: 0.0 if entry.name in finished else estimates[entry.configuration].seconds for entry in entries
    }
    stored = frozenset(entry.name for entry in entries if entry.name in finished)
    here = [entry for entry in entries if cluster.kind_of(entry.job).here]
    warning = crowded(entry.job for entry in here if entry.name not in stored)
    planned = PlannedRace(folder, race, tuple(entries), seconds, stored, estimates, may_grow,
                          notes=tuple(filter(None, (warning, fewer_steps_note(race, jobs, estimates, costs.of)))))
    if race.budget is None or len(here) < len(entries) or not entries:
        return planned
    budget = Budget(folder, race.budget, entries, seconds)
    if planned.unknown_scripts:
        return replace(planned, notes=(*planned.notes, budget.unknown_note))
    budget.begin()
    affordable = budget.affordable(
        race, jobs, {key: estimate.seconds for key, estimate in estimates.items()},
        {key: estimate.rate for key, estimate in estimates.items()},
        {key: sum(entry.name in stored for entry in entries if entry.configuration == key) for key in jobs},
        planned.guessed,
    )
    return replace(planned, affordable=affordable, notes=(*planned.notes, *budget.notes(race, affordable)))
