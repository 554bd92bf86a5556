"""Which jobs take part in a race.

Jobs that nobody could run are refused; those for which this machine lacks something are listed, each reason once. A
race that varies nothing stands for every strategy that can train the model here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.models import is_own
from velodrome.catalog.registry import SINGLE, engines
from velodrome.clusters import Cluster, environments
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.preflight import admit
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import BadRequest, Unavailable, VelodromeError
from velodrome.job.job import Job, make_job
from velodrome.job.names import named
from velodrome.job.race import Entry, Race, combinations, refusal
from velodrome.machine import cores
from velodrome.races.folder import RaceFolder, shuffled


@dataclass(frozen=True)
class CheckedRace:
    """The jobs of a race that can run here, in the order they will run, and the others."""

    entries: tuple[Entry, ...]
    #: Jobs that cannot run on this machine, by reason.
    unavailable: Mapping[str, tuple[Entry, ...]]
    #: What was adapted, a sentence each.
    notes: tuple[str, ...] = ()

    @property
    def skipped(self) -> dict[str, str]:
        """Why each job that cannot run does not, by its name."""
        reasons: dict[str, str] = {}
        for reason, entries in self.unavailable.items():
            for entry in entries:
                reasons[entry.name] = f"{reasons[entry.name]}; {reason}" if entry.name in reasons else reason
        return reasons

    @property
    def reasons(self) -> list[str]:
        """A line for each reason, with the jobs that it concerns."""
        total = len(self.entries) + len(self.skipped)
        return [f"{reason} ({_whose(entries, total)})" for reason, entries in self.unavailable.items()]

    def refuse_unavailable(self) -> None:
        """Refuse the race, because not all of it can run."""
        rest = len(self.entries)
        out = f"\nadd --skip-unavailable to run the other {_jobs(rest)}" if rest else ""
        raise BadRequest(refusal(self.reasons) + out)


def _jobs(count: int) -> str:
    return "job" if count == 1 else f"{count} jobs"


def _whose(entries: tuple[Entry, ...], total: int) -> str:
    names = dict.fromkeys(f"{entry.job.engine}/{entry.job.strategy}" for entry in entries)
    return f"{len(entries)} of {total} jobs: {', '.join(names)}"


def _wrong_data(jobs: Iterable[Job], progress: Progress | None) -> Iterator[str]:
    """What is wrong with the user's own data, a sentence for each data set."""
    for dataset, bad_data in dict.fromkeys((job.dataset, job.bad_data) for job in jobs):
        try:
            catalogue.prepare_own(dataset, progress, bad_data=bad_data)
        except VelodromeError as error:
            yield str(error)


def check_race(
    race: Race, cluster: Cluster, finished: Container[str] = (), progress: Progress | None = None
) -> CheckedRace:
    """Check every job of a race and its data before anything starts; `BadRequest` with everything that is wrong.

    What is `finished` needs no packages, no memory and no data any more.
    """
    expanded = combinations(race.model_copy(update={"repeat": race.most}))
    wrong, unavailable = expanded.wrong, dict[str, list[Entry]]()
    # If something is wrong, names only begin the sentences, and plain ones say what a job is.
    entries = named(expanded.entries, race.model_copy(update={"naming": "plain"}) if wrong else race)
    problems: dict[str, BadRequest | None] = {}
    omitted: set[str] = set()
    missing: dict[str, None] = {}
    for entry in entries:
        if entry.name in finished:
            continue
        known = entry.configuration in problems
        error = problems.setdefault(entry.configuration, None if known else _problem(entry.job, cluster))
        if error is not None and entry.baseline:
            omitted.add(entry.name)
            missing[f"no baseline {entry.job.engine}/single: {error}"] = None
        elif isinstance(error, Unavailable):
            for reason in error.reasons:
                unavailable.setdefault(reason, []).append(entry)
        elif error is not None and not known:
            wrong.append(f"{entry.name}: {error}")
    if not wrong:
        wrong += _wrong_data((entry.job for entry in entries if entry.name not in finished), progress)
    lacking = {entry.name for held in unavailable.values() for entry in held} | omitted
    checked = CheckedRace(
        tuple(entry for entry in shuffled(entries) if entry.name not in lacking),
        {reason: tuple(held) for reason, held in unavailable.items()},
        (
            *(f"{who} takes part with {_workers(count)}" for who, count in expanded.adapted.items()),
            *_baseline_note(entry for entry in entries if entry.name not in omitted),
            *missing,
        ),
    )
    if wrong:
        raise BadRequest(refusal([*wrong, *checked.reasons]))
    return checked


def _problem(job: Job, cluster: Cluster) -> BadRequest | None:
    """Why a job cannot run; repetitions differ in nothing that matters for that."""
    try:
        admit(job, cluster.of(job))
    except BadRequest as error:
        return error
    return None


def _baseline_note(entries: Iterable[Entry]) -> Iterator[str]:
    """Which baselines take part that nobody asked for."""
    added = [entry for entry in entries if entry.baseline and entry.repetition == 1]
    for engine, count in Counter(entry.job.engine for entry in added).items():
        sizes = "" if count == 1 else f" {count} times, once for each combination of the other fields"
        yield f"{engine}/single takes part{sizes}, as the baseline; --no-baseline leaves it out"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}, the most that it can have"


#: Seconds that it may take by default.
BUDGET = 900.0


def complete_race(asked: Race, folder: RaceFolder, launcher: Launcher) -> tuple[Race, tuple[str, ...]]:
    """What a race that varies nothing stands for, and a sentence for each strategy that is left out.

    A race that is stored under this name is meant as it is; otherwise every strategy takes part with a worker for each
    core, beside each engine's `single`. Fields that were given are the same for all of them, strategy and workers
    included.
    """
    if (written := folder.written()) is not None:
        given = asked.model_fields_set - {"vary", *(() if asked.job else ("job",))}
        return written.model_copy(update={field: getattr(asked, field) for field in given}), ()
    if asked.job.get("script") is not None:
        return _of_script(asked)
    candidates = list(_strategies(asked))
    if not candidates or asked.job.get("strategy") == SINGLE:
        return asked, ()  # one job, or a name that is refused as in any race
    entries: list[dict[str, Any]] = []
    reasons: dict[str, list[str]] = {}
    unasked: dict[str, list[str]] = {}
    for engine, strategy in candidates:
        if strategy.not_raced is not None and "strategy" not in asked.job:
            unasked.setdefault(strategy.not_raced, []).append(f"{engine.name}/{strategy.name}")
            continue
        if strategy.name == SINGLE and "consistency" in asked.job:
            continue  # it has none, and takes part as the baseline
        possible = [{"engine": engine.name, "strategy": strategy.name, **workers}
                    for workers in _worker_counts(asked, strategy)]
        refused = {number: reason for number, fields in enumerate(possible)
                   if (reason := _refusal({**asked.job, **fields}, launcher)) is not None}
        entries += [fields for number, fields in enumerate(possible) if number not in refused]
        for number, reason in refused.items():
            name = f"{engine.name}/{strategy.name}"
            if len(refused) < len(possible):
                workers = possible[number]["workers"]
                name += " with 1 worker" if workers == 1 else f" with {workers} workers"
            if name not in (names := reasons.setdefault(reason, [])):
                names.append(name)
    if not entries:
        raise BadRequest("\n  ".join(reasons if len(reasons) == 1 else ["nothing can run here:", *reasons]))
    notes = [f"left out: {', '.join(names)}: {reason}" for reason, names in (reasons | unasked).items()]
    return _varying(asked, {"entry": entries}), tuple(notes)


def _varying(asked: Race, vary: dict[str, list[Any]]) -> Race:
    """The race with what varies, until it is sure and within a budget unless it was asked for otherwise."""
    until_sure = asked.until_sure or "until_sure" not in asked.model_fields_set
    budget = asked.budget or (BUDGET if until_sure else None)
    return asked.model_copy(update={"vary": vary, "until_sure": until_sure, "budget": budget})


def _of_script(asked: Race) -> tuple[Race, tuple[str, ...]]:
    """A script distributes itself, so what is left to find out is whether that pays."""
    return asked if "workers" in asked.job else _varying(asked, {"workers": [1, max(2, cores())]}), ()


def _strategies(asked: Race) -> Iterator[tuple[Engine, Strategy]]:
    """Every strategy that may be meant, those of the usual engine first."""
    usual = environments.default_engine(str(asked.job.get("model") or ""))
    chosen = asked.job.get("engine") or asked.engine
    if chosen is None and is_own(str(asked.job.get("model", ""))):
        chosen = usual  # a model of one's own is written for one framework
    for engine in sorted(engines(), key=lambda engine: engine.name != usual):
        for strategy in engine.strategies if chosen in (None, engine.name) else ():
            if asked.job.get("strategy") in (None, strategy.name):
                yield engine, strategy


def _worker_counts(asked: Race, strategy: Strategy) -> list[dict[str, int]]:
    """A worker for each core, and at least two; nothing where they were given. One alone takes part, too, where that is
    another training than `single`, or where the strategy was asked for."""
    if strategy.max_workers == 1:
        return [{"workers": 1}]
    if "workers" in asked.job:
        return [{}]
    like_single = strategy.exact and not strategy.needs_control and not strategy.has_servers
    alone = [] if like_single and "strategy" not in asked.job else [{"workers": 1}]
    return [*alone, {"workers": max(2, cores())}]


def _refusal(fields: dict[str, Any], launcher: Launcher) -> str | None:
    """Why a job cannot run here; None if it can."""
    try:
        admit(make_job(fields), launcher)
    except VelodromeError as error:
        return _reason(error)
    return None


def _reason(error: VelodromeError) -> str:
    """What is missing, without the name of the strategy, so that strategies that lack the same have one sentence."""
    reasons = getattr(error, "reasons", None)
    return "; ".join(reasons) if reasons else str(error)
