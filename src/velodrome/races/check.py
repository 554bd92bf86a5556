"""Which jobs of a race can run: those that nobody could run are refused, those that this machine lacks something for
are listed with the reason, each reason once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from velodrome.clusters.preflight import admit
from velodrome.clusters.registry import Cluster
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import BadRequest, Unavailable, VelodromeError
from velodrome.job.job import Job
from velodrome.job.names import named
from velodrome.job.race import Entry, Race, combinations, refusal
from velodrome.races.folder import shuffled


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
        found: dict[str, str] = {}
        for reason, entries in self.unavailable.items():
            for entry in entries:
                found[entry.name] = f"{found[entry.name]}; {reason}" if entry.name in found else reason
        return found

    @property
    def reasons(self) -> list[str]:
        """A line for each reason, with the jobs that it concerns."""
        total = len(self.entries) + len(self.skipped)
        return [f"{reason} ({_whose(entries, total)})" for reason, entries in self.unavailable.items()]

    def refuse_unavailable(self) -> None:
        """Refuse the race if not all of it can run."""
        if not self.unavailable:
            return
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
    found = combinations(race.model_copy(update={"repeat": race.most}))
    wrong, unavailable = found.wrong, dict[str, list[Entry]]()
    # If something is wrong, names only begin the sentences, and plain ones say what a job is.
    entries = named(found.entries, race.model_copy(update={"naming": "plain"}) if wrong else race)
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
            *(f"{who} takes part with {_workers(count)}" for who, count in found.adapted.items()),
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
