"""Runs the missing jobs of a race, with warm or cold processes, and reports to an observer what happens.

Which jobs a race has is decided in `races/folder.py`, when one ends that decides by itself in `races/until_sure.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from velodrome.clusters.registry import DEFAULT, Where, launcher_named, open_launcher, open_launchers
from velodrome.job.race import Entry
from velodrome.judge.progress import Ending
from velodrome.races.budget import Budget
from velodrome.races.calibration import Calibration
from velodrome.races.folder import RaceFolder
from velodrome.races.observer import RaceObserver, Result
from velodrome.races.parallel_jobs import Lanes, lanes_of
from velodrome.races.runs import RaceRuns, run_blocks, warm_engines
from velodrome.races.until_sure import UntilSure


def run_entries(
    folder: RaceFolder, entries: Sequence[Entry], observer: RaceObserver, *, on: Where = DEFAULT, warm: bool,
    parallel: int | None = None, budget: Budget | None = None,
) -> list[Result]:
    """Run what is missing and return every result in the order of the entries.

    At most `parallel` jobs at a time, by default as many as the cluster has room for. What does not fit a budget is not
    started, and has no result. Refused if somebody else runs this race already.
    """
    finished = folder.finished()
    engines = warm_engines(entry for entry in entries if entry.name not in finished)
    with _opened(folder, entries, observer, engines if warm else [], on=on, parallel=parallel) as runs:
        run_blocks(runs, entries, budget)
        return [runs.results[entry.name] for entry in entries if entry.name in runs.results]


def run_until_sure(
    loop: UntilSure, folder: RaceFolder, entries: Sequence[Entry], observer: RaceObserver, *, on: Where = DEFAULT,
    warm: bool, parallel: int | None = None,
) -> tuple[Ending, dict[str, Result]]:
    """Run repetitions until the race is decided: how it ended, and the results of all runs by name."""
    engines = loop.engines_ahead() if warm else []
    with _opened(folder, entries, observer, engines, on=on, parallel=parallel) as runs:
        ending = loop.run(runs, observer)
        return ending, runs.results


@contextmanager
def _opened(
    folder: RaceFolder, entries: Sequence[Entry], observer: RaceObserver, engines: Sequence[str], *, on: Where,
    parallel: int | None,
) -> Iterator[RaceRuns]:
    """Runs of a race whose folder is held, with a launcher that is prepared for these engines."""
    folder.refuse_running()
    finished = folder.finished()
    for entry in entries:
        if entry.name in finished:
            observer.stored(entry, finished[entry.name])

    def listen(entry: Entry) -> dict[str, Any]:
        observer.begin(entry)
        return {"listener": lambda event: observer.event(entry, event)}

    with open_launcher(on) as launcher, open_launchers() as others, ExitStack() as stack:
        jobs = [entry.job for entry in entries if entry.job.on is None and entry.name not in finished]
        lanes = lanes_of(launcher, jobs, parallel)
        for lane in lanes:
            if lane is not launcher:
                stack.callback(lane.close)
        if engines:
            with observer.importing():
                for lane in lanes:
                    lane.prepare(engines)
        with observer.running(), folder.held():
            folder.refuse_resumed(entries)
            calibration = Calibration(folder.path) if launcher_named(on).here else None
            yield RaceRuns(folder, listen, observer.end, launcher, calibration, observer.note, others,
                           Lanes(lanes))
