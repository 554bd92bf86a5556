"""Plans a race: checks every job, and estimates how long it will take. Starts nothing but a second of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.clusters.preflight import crowded
from velodrome.clusters.registry import Cluster
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.race import Entry, Race
from velodrome.job.resolve import has_baselines
from velodrome.job.script import LONGEST_SCRIPT, batch_note
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.budget import Affordable, afford, contenders
from velodrome.judge.configuration import Configuration, names_of
from velodrome.judge.estimate import Estimate, basis_of
from velodrome.judge.phrases import as_option, in_full, in_list
from velodrome.judge.phrases import in_words as duration
from velodrome.races.check import check_race, complete_race
from velodrome.races.costs import MOST_SECONDS, Costs, worth_measuring
from velodrome.races.folder import RaceFolder
from velodrome.races.limits import Budget
from velodrome.races.request import SILENT, RaceObserver, RaceRequest

#: A race that takes longer is worth a word on how to ask for less.
_LONG_WAIT = 900.0
#: Numbers of steps after which the rate is known well enough, the best first.
_FEWER_STEPS = (300, 100, 40)


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
        ahead = {one.configuration: None for one in self.entries if one.name not in self.stored}
        return basis_of(self.estimates[key] for key in ahead or self.estimates)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most seconds of the jobs to come, where some are guessed and the guess is wrong."""
        ahead = [one for one in self.entries if one.name not in self.stored]
        found = [self.estimates[one.configuration].bounds(one.job) for one in ahead]
        return sum(least for least, _ in found), sum(most for _, most in found)

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
        jobs = [{"run": one.name, "seconds": self.seconds[one.name], **one.job.model_dump()} for one in certain]
        most = {"most_jobs": len(self.entries), "most_seconds": self.most_seconds} if self.race.until_sure else {}
        return {
            "race": self.folder.path.name, "seconds": sum(self.seconds[one.name] for one in certain), "jobs": jobs,
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
    if checked.unavailable and not (checked.entries and (asked.skip_unavailable or observer.skips(checked))):
        checked.refuse_unavailable()
    jobs = [entry.job for entry in checked.entries]
    costs = Costs.stored(folder, jobs, cluster, warm=asked.warm)
    planned = plan_entries(folder, race, checked.entries, cluster, costs)
    if asked.measure or (asked.measure is None and worth_measuring((one.job for one in planned.certain), costs)):
        ahead = {one.configuration: one.job for one in checked.entries if one.name not in planned.stored}
        costs = costs.measuring([*ahead.values()], cluster, limit=None if asked.measure else MOST_SECONDS,
                                note=observer.note, on_download=observer.data)
        if costs.measured or costs.tried:
            planned = plan_entries(folder, race, checked.entries, cluster, costs)
    return replace(
        planned, skipped=checked.skipped, reasons=tuple(checked.reasons),
        notes=(*notes, *checked.notes, *planned.notes, *_batch_notes(jobs)),
    )


def _batch_notes(jobs: Sequence[Job]) -> list[str]:
    """A sentence for each script whose global batch may grow with its workers."""
    found = []
    for script in dict.fromkeys(job.script for job in jobs if job.script is not None):
        source = ""
        with suppress(OSError, ValueError):
            source = files.read_text(Path(script), LONGEST_SCRIPT)
        found.append(batch_note((job for job in jobs if job.script == script), source))
    return [note for note in found if note]


def plan_entries(
    folder: RaceFolder, race: Race, entries: Sequence[Entry], cluster: Cluster, costs: Costs, *, may_grow: bool = False
) -> PlannedRace:
    """A plan for jobs that were checked already; refused if the folder holds another race."""
    folder.refuse_other(race, grown=may_grow)
    finished = folder.finished()
    jobs = {entry.configuration: entry.job for entry in entries}
    estimates = {key: costs.of(job) for key, job in jobs.items()}
    seconds = {one.name: 0.0 if one.name in finished else estimates[one.configuration].seconds for one in entries}
    stored = frozenset(entry.name for entry in entries if entry.name in finished)
    here = [entry for entry in entries if cluster.kind_of(entry.job).here]
    warning = crowded(entry.job for entry in here if entry.name not in stored)
    planned = PlannedRace(folder, race, tuple(entries), seconds, stored, estimates, may_grow,
                          notes=tuple(note for note in (warning, _shorter(race, jobs, estimates, costs)) if note))
    if race.budget is None or len(here) < len(entries) or not entries:
        return planned
    if planned.unknown_scripts:
        said = f"how often everything runs within the budget of {in_full(race.budget)} shows when it has run once"
        return replace(planned, notes=(*planned.notes, said))
    budget = Budget(folder, race.budget, entries, seconds)
    budget.begin()
    found = afford(contenders(
        jobs, {key: one.seconds for key, one in estimates.items()}, {key: one.rate for key, one in estimates.items()},
        {key: sum(one.name in stored for one in entries if one.configuration == key) for key in jobs}, planned.guessed,
    ), budget.left, min(FIRST_LOOK, race.most))
    return replace(planned, affordable=found, notes=(*planned.notes, *_of_budget(planned, found, budget)))


def _shorter(
    race: Race, jobs: Mapping[str, Job], estimates: Mapping[str, Estimate], costs: Costs
) -> str:
    """How to learn which one is fastest without whole trainings, of a race that is too long for its budget or for a
    short wait; empty if it is not, or if it is about more than speed."""
    least = 0.9 * (race.budget or _LONG_WAIT)
    if len(jobs) < 2 or race.objective == "accuracy" or any(
            job.script is not None or job.target or job.steps or not estimates[key].measured
            for key, job in jobs.items()):
        return ""
    if FIRST_LOOK * sum(one.seconds for one in estimates.values()) <= least:
        return ""
    for steps in _FEWER_STEPS:
        short = [job.model_copy(update={"steps": steps}) for job in jobs.values()]
        seconds = FIRST_LOOK * sum(costs.of(job).seconds for job in short)
        if seconds <= least:
            return (f"which one is fastest shows sooner: with --steps {steps} --objective throughput, {FIRST_LOOK} "
                    f"repetitions of all {len(jobs)} configurations take about {duration(seconds)}")
    return ""


def _once(race: Race) -> str:
    """What is missing to an answer where configurations run too seldom for any claim."""
    if race.repeat >= FIRST_LOOK:
        return ""
    return f"; a verdict needs {FIRST_LOOK} repetitions: add --until-sure, or --repeat {FIRST_LOOK}"


def _of_budget(planned: PlannedRace, found: Affordable, budget: Budget) -> list[str]:
    """What a budget settles, as sentences."""
    asked, count = in_full(budget.seconds or 0.0), planned.configurations
    if not planned.race.until_sure:
        total = sum(planned.seconds.values())
        if total <= budget.left:
            return [f"the budget of {asked} is enough for all jobs (about {duration(total)}){_once(planned.race)}"]
        return [f"the budget of {asked} ends before all jobs have run, which takes about {duration(total)}: repetition "
                f"by repetition, what would end later is not started; --budget {as_option(budget.spent + total)} is "
                f"enough for all{_once(planned.race)}"]
    times = min(FIRST_LOOK, planned.race.most)
    if not found.settles:
        return [f"the budget of {asked} is too small for a verdict: it needs {times} repetitions, which take about "
                f"{duration(found.least)} for two configurations (--budget {as_option(budget.spent + found.least)}); "
                "as many jobs as fit will run, the most promising first"]
    if not found.left_out and found.whole == 0:
        return [f"the budget of {asked} leaves {duration(max(0.0, budget.left))} for further repetitions"]
    if not found.left_out:
        return [f"the budget of {asked} is enough for {times} repetitions of all {count} configurations (about "
                f"{duration(found.whole)}), as many as a verdict needs"] if count > 1 else []
    configurations = {key: Configuration.of_job(job) for key, job in (
        (entry.configuration, entry.job) for entry in planned.entries)}
    names = names_of(list(configurations.values()))
    out = in_list([names[configurations[key].key] for key in reversed(found.left_out)])
    return [f"left out by the budget of {asked}, so that the others run {times} times, as a verdict needs: "
            f"{out}; --budget {as_option(budget.spent + found.whole)} includes all {count} configurations"]
