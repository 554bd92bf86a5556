"""Runs the missing jobs of a race, one after the other or several at a time, with warm or cold processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from velodrome.catalog.registry import engine_of
from velodrome.clusters import Cluster
from velodrome.errors import VelodromeError
from velodrome.job.race import Entry, Race
from velodrome.judge.budget import Ending
from velodrome.judge.criteria import criteria_of
from velodrome.races.folder import RaceFolder
from velodrome.races.hosts import ParallelJobs, parallel_launchers
from velodrome.races.limits import Budget
from velodrome.races.plan import PlannedRace
from velodrome.races.request import RaceObserver
from velodrome.races.runs import RaceRuns, run_blocks
from velodrome.races.until_sure import UntilSure, ending_of
from velodrome.run import trust
from velodrome.run.artifacts import check_address, send


def run_jobs(
    planned: PlannedRace, cluster: Cluster, observer: RaceObserver, *, warm: bool = True, parallel: int | None = None
) -> tuple[dict[str, str], Ending | None]:
    """Run the jobs of a plan that are not finished: messages of those that failed, by name, and how it ended if it
    decides by itself.

    At most `parallel` jobs at a time, by default as many as the cluster has room for. What does not fit the budget is
    not started. Refused if somebody else runs this race already.
    """
    folder, race, entries = planned.folder, planned.race, planned.entries
    trust.record(entry.job for entry in entries)  # also of jobs that a race which is stopped does not reach
    folder.begin(race, grown=planned.may_grow)
    decides = UntilSure(
        folder, race, entries, planned.seconds, criteria_of(race, (entry.job.target for entry in entries)),
        planned.promise, planned.guessed,
    ) if race.until_sure else None
    ahead = [entry for entry in entries if entry.name not in planned.stored] if decides is None else decides.ahead()
    ending = None
    with _opened(planned, cluster, observer, warm_engines(ahead) if warm else [], parallel) as runs:
        if decides is None:
            run_blocks(runs, entries, Budget(folder, race.budget, entries, planned.seconds))
        else:
            ending = decides.run(runs, observer)
    failures: dict[str, str] = {}
    for entry in entries:
        result = runs.results.get(entry.name) or (folder.run(entry.name).result() if decides else None)
        if result is not None and result.status != "finished" and not result.ended_early:
            failures[entry.name] = result.status if result.error is None else result.error.message
    return failures, ending


def check_destination(url: str | None) -> None:
    """Refuse an address at which the runs of a race cannot be stored, before anything trains."""
    if url is not None:
        check_address(url)


def send_finished(planned: PlannedRace, url: str) -> str:
    """Copy every finished run of a race to URL/RACE/RUN; returns URL/RACE."""
    path, finished = planned.folder.path, planned.folder.finished()
    address = f"{url.rstrip('/')}/{path.name}"
    for entry in planned.entries:
        if entry.name in finished:
            send(path / entry.name, address)
    return address


def stored_ending(path: Path, race: Race) -> Ending | None:
    """How a race that runs until it is sure stands by the runs in its folder; None for any other, or if its jobs are
    not known here."""
    if not race.until_sure:
        return None
    path = path.resolve()
    try:
        return ending_of(RaceFolder(path.parent, path.name), race)
    except VelodromeError:
        return None


def warm_engines(entries: Iterable[Entry]) -> list[str]:
    """The engines whose import the processes of these jobs can share; scripts start new interpreters."""
    return list(dict.fromkeys(engine_of(entry.job).key for entry in entries if entry.job.script is None))


@contextmanager
def _opened(
    planned: PlannedRace, cluster: Cluster, observer: RaceObserver, engines: Sequence[str], parallel: int | None
) -> Iterator[RaceRuns]:
    """Runs of a race whose folder is held, on hosts that are prepared for these engines."""
    folder = planned.folder
    folder.refuse_running()
    finished = folder.finished()
    for entry in planned.entries:
        if entry.name in finished:
            observer.stored(entry, finished[entry.name])
    with ExitStack() as stack:
        jobs = [entry.job for entry in planned.entries if entry.job.on is None and entry.name not in finished]
        launchers = parallel_launchers(cluster.launcher, jobs, parallel)
        for launcher in launchers:
            if launcher is not cluster.launcher:
                stack.callback(launcher.close)
        if engines:
            with observer.importing():
                for launcher in launchers:
                    launcher.prepare(engines)
        with observer.running(), folder.held():
            folder.refuse_resumed(planned.entries)
            yield RaceRuns(folder, observer, cluster, ParallelJobs(launchers))
