"""A study fitted to where it runs: every published configuration with the job that we run for it, what had to change,
and what cannot run there and how to add it. Starts nothing and fetches nothing by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from velodrome.catalog import registry
from velodrome.catalog.models import is_own, zoo_model
from velodrome.clusters import environments, preflight
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.preflight import admit, complete, examined
from velodrome.data import catalogue
from velodrome.data.base import BadData, Progress
from velodrome.errors import BadRequest, VelodromeError, bytes_text, which_name
from velodrome.job.job import Job, make_job
from velodrome.job.names import several_of, varied_fields
from velodrome.job.race import Race, parse_race
from velodrome.job.values import in_words
from velodrome.machine import cores
from velodrome.studies.format import ScaleName, Study, Values
from velodrome.studies.settings import Setting, label_of

#: Workers per core beyond which more of them only take turns.
PER_CORE = 8


@dataclass(frozen=True)
class Choice:
    """What the user chose beyond the study and its scale."""

    dataset: str | None = None
    data_url: str | None = None
    repeat: int = 1
    naming: str | None = None
    bad_data: BadData = "fail"
    test_group: int | None = None
    #: Of every strategy that has a stock form.
    implementation: str | None = None
    #: Values of published fields: configurations with others are left out.
    only: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """The machines that a study runs on."""

    #: In words, as the end of a sentence.
    machines: str
    cores: int


def this_machine() -> Site:
    return Site(f"one machine with {cores()} cores", cores())


@dataclass(frozen=True)
class StudyPlan:
    study: Study
    scale: ScaleName
    settings: tuple[Setting, ...]
    #: Published configurations that this scale leaves out.
    left_out: int
    race: Race | None
    reductions: tuple[str, ...]
    #: Where the data comes from, if that is part of the study.
    data: str | None = None
    site: Site = field(default_factory=this_machine)

    @property
    def missing(self) -> dict[str, int]:
        """What cannot run and how to add it, with the number of configurations that need it."""
        counts: dict[str, int] = {}
        for setting in self.settings:
            if setting.missing:
                counts[setting.missing] = counts.get(setting.missing, 0) + 1
        return counts

    @property
    def jobs(self) -> list[Mapping[str, Any]]:
        """Our jobs, each once."""
        jobs: list[Mapping[str, Any]] = []
        for setting in self.settings:
            if setting.ours is not None and setting.ours not in jobs:
                jobs.append(setting.ours)
        return jobs


def available(
    fields: Mapping[str, Any], *, look: Callable[[str], str | None], elsewhere: bool = False
) -> str | None:
    """Why a job cannot run, with the command that adds what is missing; None if it can.

    What is installed here does not matter to jobs whose processes run elsewhere.
    """
    name = fields["engine"]
    if name not in registry.ENGINES.usable():
        return f"engine {name} is not part of this version, so what was published with it cannot run"
    script = fields.get("script")
    try:
        job = make_job({key: fields[key] for key in ("engine", "strategy", "framework") if key in fields})
        missing = [] if elsewhere else environments.missing(registry.engine_of(job), registry.strategy_of(job))
        if not script and not is_own(fields["model"]):
            zoo_model(fields["model"])
    except BadRequest as error:
        return str(error)
    if missing:
        return f"{name}{'' if script else '/' + fields['strategy']}: {'; '.join(missing)}"
    return None if script else look(fields["dataset"])


def glance_at_data(choice: Choice, name: str) -> str | None:
    """Why a data set cannot be used, as far as a quick look shows; what has to be fetched is fetched when it runs."""
    try:
        about = catalogue.describe(name, bad_data=choice.bad_data)
    except VelodromeError as error:
        return f"{error}; or choose another data set with --dataset"
    if about.train is None and not catalogue.is_here(name, bad_data=choice.bad_data):
        return (f"data set {name} is not on this machine: `velodrome data prepare {name}` shows how to get it, or "
                "choose another one with --dataset")
    return None


def check_data(choice: Choice, progress: Progress | None, name: str) -> str | None:
    """Why a data set cannot be used, without fetching any: the user's own data is read as for a run."""
    try:
        catalogue.prepare_own(name, progress, bad_data=choice.bad_data)
    except VelodromeError as error:
        return f"{error}; or choose another data set with --dataset"
    return glance_at_data(choice, name)


def fetch_data(choice: Choice, progress: Progress | None, name: str) -> str | None:
    """Fetch a data set; the reason if that is impossible."""
    try:
        catalogue.prepare(name, progress, bad_data=choice.bad_data)
    except VelodromeError as error:
        return f"{error}; or choose another data set with --dataset"
    return None


def _changes(published: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, ...]:
    names = [name for name in dict.fromkeys([*published, *ours]) if name not in ("added",)]
    return tuple(
        f"{name} {published[name]} → {ours[name]}" if name in published else f"{name} {ours[name]}"
        for name in names if name in ours and published.get(name) != ours[name]
    )


class _Fitter:
    """Fits jobs to this machine's cores and memory, and records what was reduced.

    Jobs whose processes run elsewhere stay as they are, if the launcher there takes them.
    """

    def __init__(self, kept: Mapping[str, int], elsewhere: Launcher | None = None) -> None:
        self._elsewhere = elsewhere
        #: Workers of jobs that the race on disk has already, by `label_of`.
        self._kept = kept
        self.fitted: dict[str, int] = {}
        self._cores = cores()
        self._memory = preflight.available_memory()
        self.reductions: dict[str, None] = {}

    def fit(self, fields: dict[str, Any]) -> dict[str, Any]:
        asked = fields.get("workers", 1)
        job = complete(make_job(fields))
        label = label_of(fields)
        if label in self._kept:
            # Another number of workers would be another race, and free memory varies. A job that does not fit at this
            # moment fails when its turn comes, and the others run.
            job = self._smaller(job, self._kept[label])
            if job.workers != asked:
                self._note(job, asked, "as it ran here before")
        elif self._elsewhere is not None:
            admit(job, self._elsewhere)
        else:
            job = self._fit(job, asked)
            preflight.check_here(examined(job))
        self.fitted[label] = job.workers
        if job.workers == asked:
            return fields
        servers = {"servers": job.servers} if fields.get("servers") else {}
        return {**fields, "workers": job.workers, **servers}

    def _fit(self, job: Job, asked: int) -> Job:
        if asked > PER_CORE * self._cores:
            job = self._smaller(job, PER_CORE * self._cores)
            self._note(job, asked, f"{self._cores} cores, and more than {PER_CORE} workers per core only take turns")
        needed = preflight.needed_memory(job)
        if needed > self._memory:
            before = job.workers
            while job.workers > 1 and preflight.needed_memory(job) > self._memory:
                job = self._smaller(job, job.workers - 1)
            self._note(job, before, f"{bytes_text(needed)} of memory would be needed, but only "
                                    f"{bytes_text(self._memory)} are free")
        return job

    def _smaller(self, job: Job, workers: int) -> Job:
        """The job with fewer workers; where every worker comes with a server, with as many of both."""
        servers = workers if job.servers == job.workers else job.servers
        return job.model_copy(update={"workers": workers, "servers": servers})

    def _note(self, job: Job, before: int, why: str) -> None:
        self.reductions[f"{job.engine}/{job.strategy}: workers {before} → {job.workers} ({why})"] = None


def plan_study(
    study: Study, scale: ScaleName, choice: Choice, *, look: Callable[[str], str | None] | None = None,
    kept: Mapping[str, int] | None = None, elsewhere: Launcher | None = None,
) -> StudyPlan:
    """Fit a study to this machine at a scale; `look` returns why a data set is not available.

    `kept` are the numbers of workers of its jobs in a race that is resumed, as `Race.fitted`. `elsewhere` is the
    launcher if the processes do not run on this machine.
    """
    look = look or partial(glance_at_data, choice)
    fitter = _Fitter(kept or {}, elsewhere)
    if scale not in study.scales:
        raise BadRequest(f"--scale {scale}: {study.name} has no such scale; choose {' or '.join(study.scales)}")
    small = study.scales[scale]
    _check_only(study, choice.only)
    settings: list[Setting] = []
    looked: dict[str, str | None] = {}
    asked: list[dict[str, Any]] = []
    left_out = 0

    def look_once(name: str) -> str | None:
        if name not in looked:
            looked[name] = look(name)
        return looked[name]

    for combination in study.combinations():
        published = {name: value for name, value in combination.items() if name != "added"}
        added = bool(combination.get("added"))
        if any(published.get(name, values[0]) not in values for name, values in small.only.items()) or not all(
            in_words(published.get(name)) in map(in_words, values) for name, values in choice.only.items()
        ):
            left_out += 1
            continue
        origins = tuple(study.provenance(combination))
        ours = _chosen({**published, **small.job}, choice)
        for name, cap in small.most.items():
            if ours.get(name, 0) > cap:
                ours[name] = cap
        asked.append(ours)
        reason = available(ours, look=look_once, elsewhere=elsewhere is not None)
        if reason is None:
            try:
                ours = fitter.fit(ours)
            except VelodromeError as error:
                reason = str(error)
        settings.append(
            Setting(published, None, missing=reason, added=added, provenance=origins) if reason is not None
            else Setting(published, ours, _changes(published, ours), added=added, provenance=origins)
        )
    plan = StudyPlan(study, scale, tuple(settings), left_out, None, tuple(fitter.reductions), _data_note(study, choice))
    if not plan.jobs:
        return plan
    # Names depend on the whole study, also on what cannot run yet: they stay the same when it can.
    prefix = several_of((fields.get("dataset", "script"), fields.get("model", "script")) for fields in asked)
    fields = varied_fields(parse_race({"vary": {"entry": asked}}))
    race = _race(plan, choice).model_copy(
        update={"prefix": prefix, "named_by": fields or None, "fitted": fitter.fitted}
    )
    return StudyPlan(**{**vars(plan), "race": race})


def _check_only(study: Study, only: Values) -> None:
    """Refuse values that no configuration of a study has, with those that there are."""
    for name, values in only.items():
        there = dict.fromkeys(in_words(fields[name]) for fields in study.combinations() if name in fields)
        if not there:
            named = dict.fromkeys(key for fields in study.combinations() for key in fields if key != "added")
            raise BadRequest(f"--only {name}: {study.name} does not name that field: {which_name(name, [*named])}")
        for value in values:
            if in_words(value) not in there:
                raise BadRequest(f"--only {name}={in_words(value)}: no configuration of {study.name} has it; choose "
                                 f"from {', '.join(there)}")


def _chosen(fields: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """The job with the user's data in place of the published."""
    if fields.get("script"):
        if choice.dataset is not None:
            raise BadRequest(f"--dataset {choice.dataset!r}: {Path(fields['script']).name} is a script, which brings "
                             "its own data; leave it out")
        return fields
    if choice.dataset is not None:
        fields["dataset"] = choice.dataset
    if choice.data_url is not None:
        fields["dataset"] = f"shards:{choice.data_url.rstrip('/')}/{fields['dataset']}"
    if choice.implementation is not None and _has_stock_form(fields):
        fields["implementation"] = choice.implementation
    if choice.bad_data != "fail":
        fields["bad_data"] = choice.bad_data
    return fields


def _has_stock_form(fields: Mapping[str, Any]) -> bool:
    strategy = registry.known_strategy(fields["engine"], fields["strategy"])
    return strategy is not None and bool(strategy.implementation.stock)


def _data_note(study: Study, choice: Choice) -> str | None:
    if choice.data_url is not None:
        return f"data is read from shards at {choice.data_url}"
    if study.stored == "hdfs":
        return (
            "data is read from this machine, not from HDFS as published: write it with `velodrome data shard NAME --to "
            "hdfs://HOST:PORT/data/NAME` for each data set and give --data-url hdfs://HOST:PORT/data"
        )
    return None


def _race(plan: StudyPlan, choice: Choice) -> Race:
    """Our jobs as one race, as `velodrome race` would expand it."""
    jobs: Sequence[Mapping[str, Any]] = plan.jobs
    shared = {name: value for name, value in jobs[0].items() if all(job.get(name) == value for job in jobs)}
    entries = [{name: value for name, value in job.items() if name not in shared} for job in jobs]
    return parse_race({
        "job": shared, "vary": {"entry": entries}, "repeat": choice.repeat,
        "naming": choice.naming or plan.study.naming, "test_group": choice.test_group,
    })
