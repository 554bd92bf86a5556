"""Plans a race: puts what was asked together, checks every job, and estimates how long it will take. Starts nothing."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.api.costs import MOST_SECONDS, Costs, Note, worth_measuring
from velodrome.api.default_race import complete_race
from velodrome.clusters.preflight import crowded
from velodrome.clusters.registry import DEFAULT, Where, launcher_named, open_launcher, open_launchers
from velodrome.data.base import Progress
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.race import LIMITS, Entry, Race, combinations, parse_race
from velodrome.job.read import in_words
from velodrome.job.resolve import has_baselines
from velodrome.job.script import LONGEST_SCRIPT, batch_note
from velodrome.judge.affordable import Affordable, afford, as_option, contenders
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.configuration import Configuration, names_of
from velodrome.judge.estimate import Estimate, basis_of, in_full
from velodrome.judge.estimate import in_words as duration
from velodrome.judge.lead import in_list
from velodrome.judge.question import OBJECTIVES
from velodrome.races.budget import Budget
from velodrome.races.check import CheckedRace, check_race
from velodrome.races.folder import RaceFolder
from velodrome.run import trust
from velodrome.run.trust import Code
from velodrome.run.yaml_files import read_yaml


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
    #: The launcher.
    on: Where = DEFAULT
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


def merge(
    race: Race | str | Path | None, job: Job | Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None, fields: Mapping[str, Any] | None = None,
) -> Race:
    """A race, or that of a YAML file, with a job's fields, what varies and other fields of a race on top, unless they
    are None."""
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
    of_job = job.model_dump(exclude_unset=True) if isinstance(job, Job) else job
    content["job"] = {**(content.get("job") or {}), **(of_job or {})}
    content["vary"] = {**(content.get("vary") or {}), **{field: list(values) for field, values in (vary or {}).items()}}
    budget = (fields or {}).get("budget")
    if isinstance(budget, str) and re.fullmatch(r"[\d.,]+", budget.strip()):
        raise BadRequest(f"--budget {budget!r} has no unit: write minutes as {budget.strip()}m, seconds as "
                         f"{budget.strip()}s, or hours and minutes as 1h30m")
    content.update({name: value for name, value in (fields or {}).items() if value is not None})
    asked = parse_race(content)
    if asked.objective is not None and asked.objective not in OBJECTIVES:
        raise BadRequest(f"--objective {asked.objective!r} is unknown: choose one of {', '.join(OBJECTIVES)}")
    return asked


def words_in(given: Any) -> set[str]:
    """Every text in what was given on the command line, or to a function."""
    if isinstance(given, Job):
        given = given.model_dump(exclude_unset=True)
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list | tuple):
        return set().union(*map(words_in, given))
    return {given} if isinstance(given, str) else set()


def admit_code(
    race: Race, file: Race | str | Path | None, name: str, runs: str | Path, given: Collection[str],
    trusted: Collection[str], on: Where | None = None,
) -> list[Code]:
    """The code that the file of a race names, besides what is `given`; refused unless it may run. A race that goes on
    in the folder that its file lies in is a stored one. `on` takes the place of the cluster that it names."""
    if file is None or isinstance(file, Race):
        return []
    once = race.model_copy(update={"repeat": 1, "job": race.job if on is None else {**race.job, "on": None}})
    jobs = [entry.job for entry in combinations(once).entries]
    folder = RaceFolder(Path(runs), name).path
    if Path(file).absolute().parent.resolve() == folder.resolve():
        return trust.admit_race(jobs, f"race {name!r}", folder, given, trusted)
    return trust.admit_file(jobs, Path(file), given, trusted)


def default_name(file: Race | str | Path | None, race: Race) -> str:
    """The same name for the same race, however often it is repeated, so that the same call resumes it: the file's, or a
    hash of what is raced."""
    if isinstance(file, str | Path) and (name := re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).lstrip("._-")):
        return name[:100]
    raced = race.model_dump_json(exclude_defaults=True, exclude={*LIMITS, *(("baseline",) if race.baseline else ())})
    return f"race-{hashlib.sha256(raced.encode()).hexdigest()[:8]}"


def plan_race(
    race: Race, name: str, runs: str | Path, *, on: Where | None = None, warm: bool, complete: bool = False,
    leave_out: Callable[[CheckedRace], bool] = lambda checked: False, on_download: Progress | None = None,
    measure: bool | None = False, note: Note = lambda text: None,
) -> PlannedRace:
    """Check every job of a race and estimate how long it will take; writes nothing to `runs`.

    With `complete` a race that varies nothing stands for all strategies. If some of the jobs cannot run here,
    `leave_out` is asked whether the others run without them. `on_download` is called while data is read. `on` wins
    over the field of that name that all jobs share, and the stored race keeps the field. With `measure`, what could
    only be guessed is trained for a second; with None, if that matters and takes a few seconds. Nothing else starts.
    """
    if on is not None and "on" in race.vary:
        raise BadRequest(f"--on {str(on)!r}: the race varies where its jobs run; leave out --on, or what varies")
    folder = RaceFolder(Path(runs), name)
    notes: tuple[str, ...] = ()
    if complete and not race.vary:
        race, notes = complete_race(race, name, Path(runs), on or race.job.get("on") or DEFAULT)
    if race.baseline is None and folder.written() is None and has_baselines(race.vary, race.job):
        race = race.model_copy(update={"baseline": True})
    race = folder.stamped(race)
    raced = race
    if on is not None:
        raced = race.model_copy(update={"job": {key: value for key, value in race.job.items() if key != "on"}})
    where = on or DEFAULT
    with open_launcher(where) as launcher, open_launchers() as others:
        checked = check_race(raced, launcher, folder.finished(), on_download, others)
    if checked.unavailable and not (checked.entries and leave_out(checked)):
        checked.refuse_unavailable()
    costs = Costs.stored(Path(runs), (entry.job for entry in checked.entries), on=where, warm=warm)
    planned = plan_entries(folder, race, checked.entries, on=where, warm=warm, costs=costs)
    ahead = [entry for entry in checked.entries if entry.name not in planned.stored]
    if measure or (measure is None and worth_measuring((entry.job for entry in planned.certain), costs)):
        jobs = {entry.configuration: entry.job for entry in ahead}
        costs = costs.measuring([*jobs.values()], limit=None if measure else MOST_SECONDS, note=note,
                                on_download=on_download)
        if costs.measured or costs.tried:
            planned = plan_entries(folder, race, checked.entries, on=where, warm=warm, costs=costs)
    return replace(
        planned, skipped=checked.skipped, reasons=tuple(checked.reasons),
        notes=(*notes, *checked.notes, *planned.notes, *_batch_notes([entry.job for entry in checked.entries])),
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
    folder: RaceFolder, race: Race, entries: Sequence[Entry], *, on: Where = DEFAULT, warm: bool,
    may_grow: bool = False, costs: Costs | None = None,
) -> PlannedRace:
    """A plan for jobs that were checked already; refused if the folder holds another race."""
    folder.refuse_other(race, grown=may_grow)
    finished = folder.finished()
    if costs is None:
        costs = Costs.stored(folder.path.parent, (entry.job for entry in entries), on=on, warm=warm)
    jobs = {entry.configuration: entry.job for entry in entries}
    estimates = {key: costs.of(job) for key, job in jobs.items()}
    seconds = {one.name: 0.0 if one.name in finished else estimates[one.configuration].seconds for one in entries}
    stored = frozenset(entry.name for entry in entries if entry.name in finished)
    here = all(launcher_named(entry.job.on or on).here for entry in entries)
    warning = crowded(entry.job for entry in entries if entry.name not in stored
                      and launcher_named(entry.job.on or on).here)
    planned = PlannedRace(folder, race, tuple(entries), seconds, stored, estimates, may_grow, on,
                          notes=(warning,) if warning else ())
    if race.budget is None or not here or not entries:
        return planned
    if planned.unknown_scripts:
        said = f"how often everything runs within the budget of {in_full(race.budget)} shows when it has run once"
        return replace(planned, notes=(*planned.notes, said))
    budget = Budget(folder, race.budget, entries, seconds)
    budget.begin()
    found = afford(contenders(
        jobs, {key: one.seconds for key, one in estimates.items()}, {key: one.rate for key, one in estimates.items()},
        {key: sum(one.name in stored for one in entries if one.configuration == key) for key in jobs},
    ), budget.left, min(FIRST_LOOK, race.most))
    return replace(planned, affordable=found, notes=(*planned.notes, *_of_budget(planned, found, budget)))


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
    configurations = {key: Configuration.of({"job": job.model_dump()}) for key, job in (
        (entry.configuration, entry.job) for entry in planned.entries)}
    names = names_of(list(configurations.values()))
    out = in_list([names[configurations[key].key] for key in reversed(found.left_out)])
    return [f"left out by the budget of {asked}, so that the others run {times} times, as a verdict needs: "
            f"{out}; --budget {as_option(budget.spent + found.whole)} includes all {count} configurations"]
