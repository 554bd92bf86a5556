"""Runs the jobs of a race block by block, several at a time where their hosts allow it.

It skips what is finished, continues after a job that fails, and at the end of a block repeats what other programs
disturbed. Attempts that do not count are archived beside the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby

from velodrome.clusters import Cluster
from velodrome.clusters.launcher import Launcher
from velodrome.errors import FolderGone, VelodromeError
from velodrome.events.models import DataEvent, Event
from velodrome.job.race import Entry
from velodrome.job.result import Result
from velodrome.judge.conditions import background_load, change_note, is_loaded
from velodrome.races.folder import RaceFolder
from velodrome.races.hosts import Calibration, ParallelJobs
from velodrome.races.limits import Budget, EarlyEnd
from velodrome.races.request import RaceObserver
from velodrome.run.attempt import JobFailed, record_failure
from velodrome.run.execute import execute
from velodrome.run.processes import Failure
from velodrome.run.state import RunState

#: Repeats in a row that other programs disturbed again, after which no more runs are repeated.
_VAIN_REPEATS = 2


class RaceRuns:
    """Runs jobs of a race and keeps their results; whoever makes one holds the race's folder."""

    def __init__(
        self, folder: RaceFolder, observer: RaceObserver, cluster: Cluster, parallel: ParallelJobs | None = None
    ) -> None:
        """Several jobs run at a time if `parallel` has several launchers."""
        self._parallel = parallel if parallel is not None and len(parallel.launchers) > 1 else None
        self._telling = threading.RLock()
        self._folder, self._observer, self._cluster = folder, observer, cluster
        self._calibration = Calibration(folder.path) if cluster.target.launcher.here else None
        self._early_end: Callable[[Entry], EarlyEnd | None] = lambda entry: None
        self._vain, self._spared = 0, False
        #: Changes of the data that were mentioned.
        self._changes: set[str] = set()
        #: Results by the name of the job; failed ones of this session too.
        folder.bring_back_finished()
        self.results: dict[str, Result] = folder.finished()
        #: Seconds that each attempt of this session took, by the name of the job.
        self.seconds: dict[str, float] = {}

    @property
    def at_once(self) -> int:
        """How many jobs run at the same time."""
        return 1 if self._parallel is None else len(self._parallel.launchers)

    def is_finished(self, entry: Entry) -> bool:
        result = self.results.get(entry.name)
        return result is not None and result.status == "finished"

    def run_block(
        self, entries: Sequence[Entry], *, retry: bool = False, fits: Callable[[Entry], bool] = lambda entry: True,
        early_end: Callable[[Entry], EarlyEnd | None] = lambda entry: None,
        repeats: Callable[[Entry], bool] = lambda entry: True,
    ) -> None:
        """Run what is missing of a block; with `retry` what failed once more at its end.

        Only what `fits` starts, and `early_end` may end it. What other programs disturbed is repeated at the end, if
        `repeats` allows it.
        """
        self._early_end = early_end
        missing = [entry for entry in entries if not self.is_finished(entry) and entry.name not in self.seconds]
        ran = self._start_all(missing, fits)
        for entry in ran if retry else ():
            if not self.is_finished(entry) and not self.results[entry.name].ended_early:
                self._start(entry, fits)
        for entry in ran:
            if self.is_finished(entry) and is_loaded(self.results[entry.name]):
                self._repeat(entry, repeats)

    def _start_all(self, entries: Sequence[Entry], fits: Callable[[Entry], bool]) -> list[Entry]:
        """Start jobs, several at a time if there are launchers side by side; those that were started."""
        if self._parallel is None:
            return [entry for place, entry in enumerate(entries) if self._start(entry, fits, first=place == 0)]
        started: set[str] = set()

        def attempt(entry: Entry, launcher: Launcher) -> None:
            if fits(entry):
                started.add(entry.name)
                self._attempt(entry, launcher)

        self._parallel.run([entry for entry in entries if entry.job.on is None], attempt)
        for entry in entries:
            if entry.job.on is not None and self._start(entry, fits):
                started.add(entry.name)
        return [entry for entry in entries if entry.name in started]

    def _start(self, entry: Entry, fits: Callable[[Entry], bool], *, first: bool = False) -> bool:
        if not fits(entry):
            return False
        if self._calibration is not None:
            if first:
                self._calibration.before_block()
            self._calibration.before_run()
        self._attempt(entry)
        return True

    def _attempt(self, entry: Entry, assigned: Launcher | None = None) -> None:
        """Run a job in a new run; an earlier attempt is archived."""
        folder, observer = self._folder, self._observer
        folder.check_place()
        launcher = assigned or self._cluster.of(entry.job)
        folder.archive(entry.name)
        failure: JobFailed | None = None
        began = time.monotonic()
        with self._telling:
            observer.begin(entry)
        early, parallel = self._early_end(entry), self._parallel if assigned is not None else None

        def listen(state: RunState, event: Event) -> None:
            with self._telling:
                if isinstance(event, DataEvent):
                    self._notice_change(entry, event)
                observer.event(entry, state, event)

        def stop(state: RunState) -> Failure | None:
            return (parallel.stop() if parallel is not None else None) \
                or (early.stop(state) if early is not None else None)

        try:
            result = execute(entry.job, store=folder.store, name=entry.name, launcher=launcher, stop=stop,
                             listener=listen)
        except JobFailed as error:
            if parallel is not None and parallel.stop() is not None:
                return  # the race is over
            failure, result = error, error.result
        except FolderGone:
            raise  # whatever is written now lies where nobody looks for it
        except VelodromeError as error:
            folder.check_place()
            failure = record_failure(
                folder.store, entry.name, entry.job, error, time.monotonic() - began, launcher
            )
            result = failure.result
        with self._telling:
            self.seconds[entry.name] = time.monotonic() - began
            self.results[entry.name] = result
            observer.end(entry, result, failure)
            if result.ended_early and result.error is not None:
                observer.note(f"{entry.name} was {result.error.message}")

    def _notice_change(self, entry: Entry, event: DataEvent) -> None:
        """Say at once if the data are not those of earlier runs."""
        changed = change_note(self.results.values(), entry.job, event)
        if changed and changed not in self._changes:
            self._changes.add(changed)
            self._observer.note(f"the data of {entry.name} differ from those of earlier runs of this race: {changed}; "
                                "runs on different data are not compared with each other")

    def _repeat(self, entry: Entry, repeats: Callable[[Entry], bool]) -> None:
        """Repeat a run that other programs disturbed, and keep the attempt that they disturbed less."""
        if self._vain >= _VAIN_REPEATS:
            return
        if not repeats(entry):
            if not self._spared:
                self._observer.note(f"{entry.name} was disturbed by other programs, but does not run again: the rest "
                                    "of the budget is needed for other repetitions")
            self._spared = True
            return
        before = self.results[entry.name]
        self._observer.note(f"{entry.name} is repeated: other programs used {background_load(before)} at the same time")
        try:
            self._attempt(entry)
        except BaseException:
            if self._folder.is_in_place:
                self._folder.bring_back_finished()
            raise
        after = self.results[entry.name]
        if after.status == "finished" and not is_loaded(after):
            self._vain = 0
            return
        self._vain += 1
        if after.status != "finished" or _share(after) >= _share(before):
            self._folder.swap(entry.name)
            self.results[entry.name] = before
        if self._vain == _VAIN_REPEATS:
            self._observer.note("other programs keep this machine busy: disturbed runs are no longer repeated")


def run_blocks(runs: RaceRuns, entries: Sequence[Entry], budget: Budget | None = None) -> None:
    """Run what is missing, block by block, as far as the budget goes; disturbed runs are repeated if all else fits."""
    if budget is not None:
        budget.begin()
        budget.announce(entries)

    def fits(entry: Entry) -> bool:
        return budget is None or budget.fits(entry, runs.results)

    def repeats(entry: Entry) -> bool:
        ahead = [other for other in entries if other.name not in runs.results]
        return budget is None or budget.may_repeat(entry, runs.results, ahead)

    for _, block in groupby(entries, key=lambda entry: entry.repetition):
        runs.run_block(list(block), fits=fits, repeats=repeats)


def _share(result: Result) -> float:
    load = background_load(result)
    return load.share if load is not None else 0.0
