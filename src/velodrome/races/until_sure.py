"""Runs the repetitions of a race until it is decided: after each one, configurations that are out run no more.

What happens next follows from the stored runs alone, so an interrupted race continues as if nothing had happened.

A repetition that a later one has followed is closed: what is missing in it stays missing, because a run made an hour
later is not comparable with the others of its repetition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from velodrome.job.names import expand
from velodrome.job.race import Entry, Race
from velodrome.job.result import Result
from velodrome.judge.attempts import Limit
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.budget import Affordable, Ending, Stopped, cut_short
from velodrome.judge.conditions import newest
from velodrome.judge.configuration import Configuration
from velodrome.judge.criteria import Criteria, criteria_of
from velodrome.judge.judge import MOST_FAILURES, Dropped, Judgement, TaskJudgement, TaskOutcome, judge
from velodrome.judge.phrases import as_option, in_list
from velodrome.races.folder import RaceFolder
from velodrome.races.limits import Budget, EarlyEnd, configuration_names
from velodrome.races.request import RaceObserver
from velodrome.races.runs import RaceRuns


class UntilSure:
    """The repetitions of one race. `expected` are seconds and `promise` how fast it may be, both by the name of a job,
    for those that never ran; `guessed` are configurations whose seconds nothing was measured for."""

    def __init__(
        self, folder: RaceFolder, race: Race, entries: Sequence[Entry], expected: Mapping[str, float],
        criteria: Criteria, promise: Mapping[str, float] = MappingProxyType({}), guessed: Collection[str] = (),
    ) -> None:
        self._folder, self._race, self._criteria, self._promise = folder, race, criteria, promise
        self._guessed = guessed
        self._budget = Budget(folder, race.budget, entries, expected)
        self._blocks: dict[int, list[Entry]] = {}
        self._of: dict[str, list[Entry]] = {}
        for entry in entries:
            self._blocks.setdefault(entry.repetition, []).append(entry)
            self._of.setdefault(entry.configuration, []).append(entry)
        jobs = {key: held[0].job for key, held in self._of.items()}
        self._names = configuration_names(jobs)
        self._tasks = {key: Configuration.of_job(job).task for key, job in jobs.items()}
        #: Configurations that do not run because the others need the budget.
        self._left_out: frozenset[str] = frozenset()
        #: When runs of this repetition are ended early.
        self._limits: Sequence[Limit] = ()
        self._told: set[str] = set()
        #: In which order configurations run where the budget settles nothing: the most promising first.
        self._order: Sequence[str] = ()

    def run(self, runs: RaceRuns, observer: RaceObserver) -> Ending:
        """Run until it is decided, or until the budget or the number of repetitions ends."""
        self._budget.begin()
        newest = self._newest()
        self._keep(runs, newest, observer, told=runs.at_once > 1)
        for number in sorted(self._blocks):
            if newest < number <= FIRST_LOOK:
                self._keep(runs, number, observer, told=True)
            tasks, failing = self._look(runs, number, observer) if number >= newest else ([], {})
            ahead = self._ahead(number, newest, runs.results, tasks, failing)
            if ahead is None:
                break
            if ahead:
                observer.block(number, ahead)
                self._budget.announce(ahead)
                self._limits = self._judged(runs.results, number).limits
                runs.run_block(
                    ahead, retry=True, early_end=self._early_end,
                    fits=lambda entry: self._budget.fits(entry, runs.results),
                    repeats=lambda entry: self._budget.may_repeat(entry, runs.results, self._reserved(runs.results)),
                )
            if self._budget.exceeded:
                break
        self._look(runs, len(self._blocks) + 1, observer)
        return ending_of(self._folder, self._race, self._criteria)

    def ahead(self) -> list[Entry]:
        """What the next repetition with something to run has still to run; empty if the race is over."""
        finished = self._folder.finished()
        self._left_out = frozenset(self._afford(finished).left_out)
        return [*self._walk(finished, self._newest())[2]]

    def as_stored(self) -> Ending:
        """How the race stands by its stored runs, without running anything."""
        finished, newest, limited = self._folder.finished(), self._newest(), self._race.budget is not None
        failing, gaps = self._failing(finished), self._gaps(finished) if limited else set[str]()
        not_run = self._not_run(finished, failing) if limited or newest == 1 else set[str]()
        # Where a later repetition has begun, what never ran was left out or cannot run on this machine.
        self._left_out = frozenset(gaps | (self._not_run(finished, failing) if newest > 1 else set()))
        tasks, _ = self._stand(finished, len(self._blocks) + 1)
        stopped, repetitions, ahead = self._walk(finished, newest)
        whole = limited or not not_run
        if stopped in ("max-repeat", "budget") and tasks and whole and all(task.outcome != "open" for task in tasks):
            stopped = "sure"
        late = {entry.configuration for entry in ahead} if repetitions == newest <= FIRST_LOOK else set[str]()
        lacking = (gaps | late if stopped == "budget" else gaps) - not_run
        if lacking | not_run | failing.keys() == self._of.keys():
            lacking = gaps  # nothing is ahead of the others
        return Ending(
            stopped, repetitions, tuple(TaskOutcome(task.task, task.outcome, task.survivors) for task in tasks),
            _drops(tasks, failing), self._named(not_run), self._named(lacking),
            self._enough(finished) if stopped == "budget" and repetitions <= FIRST_LOOK else None,
        )

    def _walk(self, finished: Mapping[str, Result], newest: int) -> tuple[Stopped, int, Sequence[Entry]]:
        """What stopped the race, in which repetition, and what of that is still to run."""
        repetitions = 0
        for number in sorted(self._blocks):
            tasks, failing = self._stand(finished, number) if number >= newest else ([], {})
            ahead = self._ahead(number, newest, finished, tasks, failing)
            if ahead is None:
                hopeless = any(task.hopeless for task in tasks) or not tasks
                return "hopeless" if hopeless else "sure", repetitions, ()
            repetitions = number
            if ahead:
                return "budget", repetitions, ahead
        return "max-repeat", repetitions, ()

    def _enough(self, finished: Mapping[str, Result]) -> float | None:
        """Seconds of a budget with which two configurations reach the first look; None if they have."""
        least = self._afford(finished).least
        return self._budget.stored + least if least > 0 else None

    def _named(self, keys: Collection[str]) -> tuple[str, ...]:
        return tuple(name for key, name in self._names.items() if key in keys)

    def _keep(self, runs: RaceRuns, number: int, observer: RaceObserver, *, told: bool = False) -> None:
        """Leave out what the budget has no room for, so that the others reach the first look; with `told`, say so."""
        before, affordable = self._left_out, self._afford(runs.results, runs.at_once)
        self._left_out = frozenset(affordable.left_out)
        new = [self._names[key] for key in affordable.left_out if key not in before]
        warned, self._order = bool(self._order), () if affordable.settles else affordable.kept
        if told and new:
            observer.note(f"left out by the budget after {number - 1} of {FIRST_LOOK} repetitions: {in_list(new)}; "
                          f"--budget {as_option(self._budget.spent + affordable.whole)} includes all")
        elif told and self._order and not warned:
            observer.note(f"the budget ends before repetition {FIRST_LOOK}, the first after which there is a verdict: "
                          f"--budget {as_option(self._budget.spent + affordable.least)} is enough for two "
                          "configurations")

    def _afford(self, results: Mapping[str, Result], at_once: int = 1) -> Affordable:
        """What fits into the budget, as the race stands; configurations that always fail cost nothing more."""
        failing, seen = self._failing(results), self._seen(results)
        able = {key: held for key, held in self._of.items() if key not in failing}
        return self._budget.affordable(
            self._race, {key: held[0].job for key, held in able.items()},
            {key: self._budget.expected(held[0], results) for key, held in able.items()},
            seen or {key: self._promise.get(held[0].name, 0.0) for key, held in able.items()},
            {key: sum(_finished(results, entry) or bool(self._ended(entry)) for entry in held)
             for key, held in able.items()},
            {key for key in self._guessed if not any(_finished(results, entry) for entry in self._of[key])},
            at_once=at_once,
        )

    def _seen(self, results: Mapping[str, Result]) -> dict[str, float]:
        """How good configurations are by their runs in this race; empty unless all have some that can have any."""
        values = judge(self._results(results, max(self._blocks) + 1), self._criteria).promise
        promise = {key: values[entry.name] for key, held in self._of.items() for entry in held if entry.name in values}
        return promise if promise.keys() | self._failing(results).keys() == self._of.keys() else {}

    def _reserved(self, results: Mapping[str, Result]) -> list[Entry]:
        """Jobs of the first repetitions that are still to run, for which the budget is reserved."""
        failing = self._failing(results)
        return [entry for number, block in self._blocks.items() if number <= FIRST_LOOK for entry in block
                if entry.configuration not in self._left_out and entry.configuration not in failing
                and not _finished(results, entry) and not self._ended(entry)]

    def _gaps(self, results: Mapping[str, Result]) -> set[str]:
        """Configurations that the budget left out after they had run, by the gaps in their repetitions."""
        return cut_short({
            key: [entry.repetition for entry in held if self._has_begun(entry)]
            for key, held in self._of.items() if any(_finished(results, entry) for entry in held)
        })

    def _not_run(self, results: Mapping[str, Result], failing: Mapping[str, Dropped]) -> set[str]:
        """Configurations without any result that are not out."""
        return {key for key, entries in self._of.items()
                if key not in failing and not any(_finished(results, entry) for entry in entries)}

    def _stand(
        self, results: Mapping[str, Result], before: int
    ) -> tuple[Sequence[TaskJudgement], dict[str, Dropped]]:
        """How the race stands before a repetition: its tasks, and configurations that always fail."""
        return self._judged(results, before).tasks, self._failing(results)

    def _judged(self, results: Mapping[str, Result], before: int) -> Judgement:
        """The race by what the repetitions before one gave to those that take part, on the newest data if those
        changed."""
        return judge(newest(self._results(results, before, self._left_out)), self._criteria)

    def _results(
        self, results: Mapping[str, Result], before: int, without: Collection[str] = ()
    ) -> list[Result]:
        return [
            result.with_job(entry.job, run=entry.name)
            for number, block in sorted(self._blocks.items()) if number < before
            for entry in block if entry.configuration not in without for result in self._attempts(entry, results)
        ]

    def _early_end(self, entry: Entry) -> EarlyEnd | None:
        """What ends a run when it cannot win any more, if another configuration is known to be faster."""
        mine = {other.name for other in self._of[entry.configuration]}
        limit = next((limit for limit in self._limits if limit.runs & mine), None)
        return None if limit is None else EarlyEnd(entry.job, limit, self._criteria.grace or 1)

    def _attempts(self, entry: Entry, results: Mapping[str, Result]) -> list[Result]:
        """What a job gave: its result, and those of attempts that failed, which count against its configuration."""
        finished = [results[entry.name]] if _finished(results, entry) else self._ended(entry)
        # An error in the user's own code is what one mends before running again.
        failed = (result for result in self._failed(entry) if result.error is None or result.error.cause != "user")
        return [*finished, *failed]

    def _look(
        self, runs: RaceRuns, before: int, observer: RaceObserver
    ) -> tuple[Sequence[TaskJudgement], dict[str, Dropped]]:
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
        self, number: int, newest: int, results: Mapping[str, Result], tasks: Sequence[TaskJudgement],
        failing: Mapping[str, Dropped],
    ) -> list[Entry] | None:
        """What a repetition has still to run, as the race stands before it; None if nobody takes part any more."""
        block = [entry for entry in self._blocks[number] if entry.configuration not in self._left_out]
        if number < newest:
            # Which every configuration must have: those that an earlier budget left out as well.
            least = number <= max(self._race.repeat, FIRST_LOOK if self._race.budget is not None else 1)
            return [entry for entry in block if least and not self._has_begun(entry)]
        members = [entry for entry in block if self._takes_part(entry, results, tasks, failing)]
        if not members:
            return None
        ahead = [
            entry for entry in members if not _finished(results, entry) and len(self._failed(entry)) < MOST_FAILURES
            and not self._ended(entry)
        ]
        return sorted(ahead, key=lambda entry: self._order.index(entry.configuration)) if self._order else ahead

    def _takes_part(
        self, entry: Entry, results: Mapping[str, Result], tasks: Sequence[TaskJudgement],
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
        failing = {}
        for key, entries in self._of.items():
            if any(_finished(results, entry) for entry in entries):
                continue
            counts = {entry.repetition: len(self._failed(entry)) for entry in entries if self._has_begun(entry)}
            if (total := sum(counts.values())) >= MOST_FAILURES:
                why = f"did not finish in {total} of {total} runs"
                failing[key] = Dropped(self._names[key], max(counts), why)
        return failing

    def _failed(self, entry: Entry) -> list[Result]:
        """The attempts of a job that failed by themselves; what somebody interrupted does not count."""
        folder = self._folder
        results = [run.result() for run in (*folder.attempts(entry.name), folder.run(entry.name))]
        return [result for result in results if result is not None and result.status == "failed"]

    def _ended(self, entry: Entry) -> list[Result]:
        """The result of a run that was ended because it could not win any more, if it was."""
        result = self._folder.run(entry.name).result()
        return [result] if result is not None and result.ended_early else []

    def _has_begun(self, entry: Entry) -> bool:
        return (self._folder.path / entry.name).exists()


def ending_of(folder: RaceFolder, race: Race, criteria: Criteria | None = None) -> Ending:
    """How a race that runs until it is sure stands by the runs in its folder."""
    entries = expand(race.model_copy(update={"repeat": race.most}))
    criteria = criteria or criteria_of(race, (entry.job.target for entry in entries))
    guessed = {entry.configuration for entry in entries}  # unless it ran
    return UntilSure(folder, race, entries, folder.expected(), criteria, guessed=guessed).as_stored()


def _finished(results: Mapping[str, Result], entry: Entry) -> bool:
    return entry.name in results and results[entry.name].status == "finished"


def _drops(tasks: Sequence[TaskJudgement], failing: Mapping[str, Dropped]) -> tuple[Dropped, ...]:
    """All configurations that are out, in the order in which they were dropped, and by name."""
    drops = [*failing.values(), *(drop for task in tasks for drop in task.dropped)]
    return tuple(sorted(drops, key=lambda drop: (drop.after, drop.name)))
