"""Runs the repetitions of a race until it is decided: after each one, configurations that are out run no more.

What happens next follows from the stored runs alone, so an interrupted race continues as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from velodrome.analysis.configuration import Configuration, names_of
from velodrome.analysis.data_versions import newest
from velodrome.analysis.early_end import Limit
from velodrome.analysis.lead import in_list
from velodrome.analysis.margins import parse_margins
from velodrome.analysis.progress import MOST_FAILURES, Criteria, Dropped, TaskStanding, limits_of, standings
from velodrome.events.endings import ended_early
from velodrome.run.early_end import watched
from velodrome.run.race import RaceFolder
from velodrome.run.race_observer import RaceObserver, Result
from velodrome.run.race_runs import RaceRuns, attempts_of, warm_engines
from velodrome.run.store import RunFolder
from velodrome.run.supervisor import Listener
from velodrome.spec.race import Entry, Race

Stopped = Literal["sure", "budget", "max-repeat", "hopeless"]


@dataclass(frozen=True)
class Ending:
    """Why a race ended, and how it stands."""

    stopped: Stopped
    repetitions: int
    tasks: tuple[TaskStanding, ...]
    dropped: tuple[Dropped, ...]
    #: Configurations that never ran, because the budget was over.
    not_run: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        return self.stopped == "sure"

    @property
    def sentence(self) -> str:
        """Why it ended."""
        times = "1 repetition" if self.repetitions == 1 else f"{self.repetitions} repetitions"
        if self.stopped == "sure":
            return f"Sure after {times}."
        if self.stopped == "budget":
            lacking = f" before {in_list(self.not_run)} ran" if self.not_run else ""
            return f"Stopped by the budget in repetition {self.repetitions}{lacking}; a larger --budget continues."
        if self.stopped == "hopeless":
            return f"Stopped after {times}: no configuration can win."
        return f"Stopped after {times}, the most that were allowed; a larger --max-repeat continues."

    def as_json(self) -> dict[str, Any]:
        return {
            "sure": self.sure, "stopped": self.stopped, "repetitions": self.repetitions,
            "tasks": [task.as_json() for task in self.tasks], "not_run": list(self.not_run),
        }


def criteria_of(race: Race, targets: Iterable[str | None]) -> Criteria:
    """What a race is judged by; its target counts if all jobs have the same."""
    found = set(targets)
    return Criteria(
        race.objective, found.pop() if len(found) == 1 else None, parse_margins(race.tolerance, race.accuracy_margin),
        race.grace,
    )


class UntilSure:
    """The repetitions of one race. `expected` are seconds by the name of a job, for those that never ran."""

    def __init__(
        self, folder: RaceFolder, race: Race, entries: Sequence[Entry], expected: Mapping[str, float],
        criteria: Criteria,
    ) -> None:
        self._folder, self._race, self._criteria, self._expected = folder, race, criteria, expected
        self._blocks: dict[int, list[Entry]] = {}
        self._of: dict[str, list[Entry]] = {}
        for entry in entries:
            self._blocks.setdefault(entry.repetition, []).append(entry)
            self._of.setdefault(entry.configuration, []).append(entry)
        jobs = {key: Configuration.of({"job": held[0].job.model_dump()}) for key, held in self._of.items()}
        names = names_of(list(jobs.values()))
        self._names = {key: names[job.key] for key, job in jobs.items()}
        self._tasks = {key: job.task for key, job in jobs.items()}
        self._spent, self._began = 0.0, 0.0
        self._out_of_time = False
        #: When runs of this repetition are ended early.
        self._limits: Sequence[Limit] = ()
        self._told: set[str] = set()

    def run(self, runs: RaceRuns, observer: RaceObserver) -> Ending:
        """Run until it is decided, or until the budget or the number of repetitions ends."""
        self._spent, self._began = self._stored_seconds(), time.monotonic()
        stopped: Stopped = "max-repeat"
        repetitions = 0
        newest = self._newest()
        for number in sorted(self._blocks):
            tasks, failing = self._look(runs, number, observer) if number >= newest else ([], {})
            ahead = self._ahead(number, newest, runs.results, tasks, failing)
            if ahead is None:
                stopped = "hopeless" if any(task.hopeless for task in tasks) or not tasks else "sure"
                break
            repetitions = number
            if ahead:
                observer.block(number, ahead)
                self._limits = limits_of(self._counted(runs.results, number), self._criteria)
                runs.run_block(ahead, retry=True, fits=lambda entry: self._fits(entry, runs), watch=self._watched)
            if self._out_of_time:
                stopped = "budget"
                break
        tasks, failing = self._look(runs, repetitions + 1, observer)
        if stopped in ("max-repeat", "budget") and self._is_sure(tasks, failing, runs.results):
            stopped = "sure"
        not_run = self._not_run(runs.results, failing)
        ending = Ending(stopped, repetitions, tuple(tasks), _drops(tasks, failing), not_run)
        observer.decided(ending)
        return ending

    def engines_ahead(self) -> list[str]:
        """The engines of the next repetition with something to run; empty if the race is over."""
        finished, newest = self._folder.finished(), self._newest()
        for number in sorted(self._blocks):
            tasks, failing = self._stand(finished, number) if number >= newest else ([], {})
            ahead = self._ahead(number, newest, finished, tasks, failing)
            if ahead is None:
                break
            if ahead:
                return warm_engines(ahead)
        return []

    def as_stored(self) -> Ending:
        """How the race stands by its stored runs, without running anything."""
        finished = self._folder.finished()
        tasks, failing = self._stand(finished, max(self._blocks, default=0) + 1)
        repetitions = max((entry.repetition for block in self._blocks.values() for entry in block
                           if entry.name in finished), default=0)
        sure = self._is_sure(tasks, failing, finished)
        hopeless = any(task.hopeless for task in tasks)
        most = repetitions >= self._race.most
        stopped: Stopped = "sure" if sure else "hopeless" if hopeless else "max-repeat" if most else "budget"
        return Ending(stopped, repetitions, tuple(tasks), _drops(tasks, failing), self._not_run(finished, failing))

    def _not_run(self, results: Mapping[str, Result], failing: Mapping[str, Dropped]) -> tuple[str, ...]:
        """Names of configurations without any result that are not out."""
        return tuple(self._names[key] for key, entries in self._of.items()
                     if key not in failing and not any(_finished(results, entry) for entry in entries))

    def _is_sure(
        self, tasks: Sequence[TaskStanding], failing: Mapping[str, Dropped], results: Mapping[str, Result]
    ) -> bool:
        """Whether every task is decided, and with all configurations that can run."""
        return bool(tasks) and not self._not_run(results, failing) and all(task.outcome != "open" for task in tasks)

    def _stand(self, results: Mapping[str, Result], before: int) -> tuple[list[TaskStanding], dict[str, Dropped]]:
        """How the race stands before a repetition: its tasks, and configurations that always fail."""
        return standings(self._counted(results, before), self._criteria), self._failing(results)

    def _counted(self, results: Mapping[str, Result], before: int) -> list[Mapping[str, Any]]:
        """What the repetitions before one gave on the newest data, if those changed meanwhile."""
        return newest([
            {**result, "run": entry.name, "job": entry.job.model_dump()}
            for number, block in sorted(self._blocks.items()) if number < before
            for entry in block for result in self._attempts(entry, results)
        ])

    def _watched(self, entry: Entry, listener: Listener) -> Listener:
        """A listener that ends a run when it cannot win any more."""
        mine = {other.name for other in self._of[entry.configuration]}
        limit = next((limit for limit in self._limits if limit.runs & mine), None)
        return listener if limit is None else watched(listener, entry.job, limit, self._criteria.grace or 1)

    def _attempts(self, entry: Entry, results: Mapping[str, Result]) -> list[Result]:
        """What a job gave: its result, and those of attempts that failed, which count against its configuration."""
        found = [results[entry.name]] if _finished(results, entry) else self._ended(entry)
        # An error in the user's own code is what one mends before running again.
        return [*found, *(one for one in self._failed(entry) if (one.get("error") or {}).get("cause") != "user")]

    def _look(
        self, runs: RaceRuns, before: int, observer: RaceObserver
    ) -> tuple[list[TaskStanding], dict[str, Dropped]]:
        """As `_stand`, and every new drop is reported."""
        tasks, failing = self._stand(runs.results, before)
        for drop in _drops(tasks, failing):
            if drop.name + drop.task not in self._told:
                self._told.add(drop.name + drop.task)
                observer.dropped(drop)
        return tasks, failing

    def _newest(self) -> int:
        """The newest repetition that has begun: all before it were judged with the runs that they have."""
        return max((n for n, block in self._blocks.items() if any(map(self._has_begun, block))), default=1)

    def _ahead(
        self, number: int, newest: int, results: Mapping[str, Result], tasks: Sequence[TaskStanding],
        failing: Mapping[str, Dropped],
    ) -> list[Entry] | None:
        """What a repetition has still to run, as the race stands before it; None if nobody takes part any more."""
        block = self._blocks[number]
        if number < newest:
            least = number <= self._race.repeat  # which every configuration must have
            return [entry for entry in block if least and not self._has_begun(entry)]
        members = [entry for entry in block if self._takes_part(entry, results, tasks, failing)]
        if not members:
            return None
        return [
            entry for entry in members if not _finished(results, entry) and self._failures(entry) < MOST_FAILURES
            and not self._ended(entry)
        ]

    def _takes_part(
        self, entry: Entry, results: Mapping[str, Result], tasks: Sequence[TaskStanding],
        failing: Mapping[str, Dropped],
    ) -> bool:
        """Whether a configuration runs in another repetition."""
        if entry.configuration in failing:
            return False
        if entry.repetition <= self._race.repeat:
            return True
        mine = {other.name for other in self._of[entry.configuration] if _finished(results, other)}
        task = next((task for task in tasks if task.key == self._tasks[entry.configuration]), None)
        if not mine or task is None:
            return True
        return not task.decided and not mine & task.twins and not any(mine & drop.runs for drop in task.dropped)

    def _failing(self, results: Mapping[str, Result]) -> dict[str, Dropped]:
        """Configurations of which no run finished and that were tried often enough."""
        found = {}
        for key, entries in self._of.items():
            if any(_finished(results, entry) for entry in entries):
                continue
            counts = {entry.repetition: self._failures(entry) for entry in entries if self._has_begun(entry)}
            if (total := sum(counts.values())) >= MOST_FAILURES:
                why = f"did not finish in {total} of {total} runs"
                found[key] = Dropped(self._names[key], max(counts), why)
        return found

    def _failures(self, entry: Entry) -> int:
        """How often a job failed by itself; what somebody interrupted does not count."""
        return len(self._failed(entry))

    def _failed(self, entry: Entry) -> list[Result]:
        path = self._folder.path / entry.name
        results = [run.result() for run in (*attempts_of(path), RunFolder(path))]
        return [result for result in results if result is not None and result["status"] == "failed"]

    def _ended(self, entry: Entry) -> list[Result]:
        """The result of a run that was ended because it could not win any more, if it was."""
        result = RunFolder(self._folder.path / entry.name).result()
        return [result] if result is not None and ended_early(result) else []

    def _has_begun(self, entry: Entry) -> bool:
        return (self._folder.path / entry.name).exists()

    def _fits(self, entry: Entry, runs: RaceRuns) -> bool:
        """Whether a job is expected to end within the budget."""
        if self._race.budget is None:
            return True
        left = self._race.budget - self._spent - (time.monotonic() - self._began)
        fits = self._seconds(entry, runs) <= left
        self._out_of_time = self._out_of_time or not fits
        return fits

    def _seconds(self, entry: Entry, runs: RaceRuns) -> float:
        """How long a job will take: as its configuration did so far, or as was estimated."""
        ran = [elapsed(runs.results[other.name]) for other in self._of[entry.configuration] if runs.is_finished(other)]
        return median(ran) if ran else self._expected.get(entry.name, 0.0)

    def _stored_seconds(self) -> float:
        """What all runs of earlier sessions took, archived attempts included."""
        return sum(elapsed(result) for run in self._folder.store.runs() if (result := run.result()) is not None)


def _finished(results: Mapping[str, Result], entry: Entry) -> bool:
    return entry.name in results and results[entry.name]["status"] == "finished"


def _drops(tasks: Sequence[TaskStanding], failing: Mapping[str, Dropped]) -> tuple[Dropped, ...]:
    """All configurations that are out, in the order in which they were dropped."""
    found = [*failing.values(), *(drop for task in tasks for drop in task.dropped)]
    return tuple(sorted(found, key=lambda drop: drop.after))


def elapsed(result: Result) -> float:
    """Seconds between the start and the end of a run."""
    return max(0.0, (result.get("ended") or 0.0) - (result.get("started") or 0.0))
