"""The one judge: from the results of a race and what it is judged by to rows, drops, survivors and an answer per task.

Pure functions, so that a stored race is judged exactly as it was while it ran. A race that runs, its terminal, report
and page, studies and the API all use this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.judge.attempts import Limit, limits
from velodrome.judge.blocks import ERROR_RATE, FIRST_LOOK
from velodrome.judge.candidates import accurate_enough, ask
from velodrome.judge.choice import Commands
from velodrome.judge.compare import Row, compare, crashed_always, tasks_of
from velodrome.judge.configuration import Configuration, names_of
from velodrome.judge.criteria import Criteria
from velodrome.judge.decide import Drop, Outcome
from velodrome.judge.phrases import Lead, counted, lead_json, times
from velodrome.judge.question import Question
from velodrome.judge.verdict import Recommendation, recommend

#: Attempts of a configuration that all failed after which it is not tried again.
MOST_FAILURES = 2


@dataclass(frozen=True)
class Failure:
    """A run without a result, and the reason."""

    run: str
    status: str
    message: str
    #: What it should have trained on what, as `Configuration.task`; None if its job cannot be read.
    task: str | None = None


@dataclass(frozen=True)
class Dropped:
    """A configuration that is out of a race."""

    name: str
    #: After how many repetitions.
    after: int
    #: Why, to follow the name: `1.62× slower than torch/single (at least 1.38×)`.
    why: str
    beaten_by: str | None = None
    #: How much better the one that beat it is.
    lead: Lead | None = None
    #: Names of its runs.
    runs: frozenset[str] = field(default=frozenset(), repr=False)
    #: Data set and model, if a race has several.
    task: str = ""

    def __str__(self) -> str:
        on = f" on {self.task}" if self.task else ""
        return f"dropped after {counted(self.after, 'repetition')}: {self.name}{on}, {self.why}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "task": self.task, "after": self.after, "beaten_by": self.beaten_by,
            **lead_json(self.lead), "why": self.why,
        }


@dataclass(frozen=True)
class TaskOutcome:
    """Who is left of one data set and model."""

    task: str
    outcome: Outcome
    #: Names of configurations that are not out.
    survivors: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"task": self.task, "outcome": self.outcome, "survivors": list(self.survivors)}


@dataclass(frozen=True)
class TaskJudgement:
    """How the configurations of one data set and model compare; what follows from the rows is computed when needed."""

    #: Data set and model; empty if the race has only one of each.
    task: str
    rows: tuple[Row, ...]
    criteria: Criteria
    #: Runs of the task that gave no result.
    failed: int = 0
    #: Crashes of configurations of which no run finished, by name.
    crashed: Mapping[str, int] = field(default_factory=dict)
    #: Commands on the race that may be recommended.
    commands: Commands = field(default_factory=Commands)

    @property
    def key(self) -> str:
        """Equal for configurations of the same task, as `Configuration.task`."""
        return self.rows[0].configuration.task

    @cached_property
    def question(self) -> Question:
        return ask(self.rows, self.criteria)

    @cached_property
    def dropped(self) -> tuple[Dropped, ...]:
        """Configurations that are out: those that others beat, then those that may not win."""
        question = self.question
        beaten = [self._beaten(drop) for drop in question.standing.drops] if question.candidates else []
        set_aside = [
            Dropped(row.name, tries(row), why, runs=_runs(row), task=self.task) for row in self._not_competing
            if question.candidates and tries(row) >= FIRST_LOOK and (why := self._why_set_aside(row))
        ]
        return (*beaten, *set_aside)

    @cached_property
    def survivors(self) -> tuple[str, ...]:
        """Names of those that are not out."""
        out = {drop.name for drop in self.dropped} | self.question.twins.keys()
        return tuple(row.name for row in self.rows if row.name not in out)

    @cached_property
    def outcome(self) -> Outcome:
        question = self.question
        competing = {candidate.name for candidate in question.candidates}
        if not competing or not competing.issuperset(self.survivors):
            return "open"
        if question.survivors[0].name in question.seen_worse:
            return "open"  # whether it may win is not settled
        return question.standing.outcome

    @property
    def hopeless(self) -> bool:
        """Whether more repetitions cannot help: nobody reached the target."""
        return not self.question.candidates and min(row.runs for row in self.rows) >= FIRST_LOOK

    @property
    def decided(self) -> bool:
        return self.outcome != "open" or self.hopeless

    @property
    def twins(self) -> frozenset[str]:
        """Runs of configurations that do not compete, because they are the same training as another."""
        return frozenset[str]().union(*(_runs(row) for row in self.rows if row.name in self.question.twins))

    @cached_property
    def answer(self) -> Recommendation:
        """What to use. Its sentences name what differs among these rows: which of several models is meant is said
        beside the answer."""
        names = names_of([row.configuration for row in self.rows])
        short = tuple(replace(row, name=names[row.configuration.key]) for row in self.rows)
        whole = {short_row.name: row.name for short_row, row in zip(short, self.rows, strict=True)}
        named = self if short == self.rows else replace(self, rows=short)
        question = named.question if self.rows else None
        answer = recommend(question, named.rows, self.criteria, self.failed, self.crashed, self.commands)
        return answer.renamed(whole)

    def by(self, objective: str) -> Recommendation:
        """The answer by another objective."""
        return replace(self, criteria=replace(self.criteria, objective=objective)).answer

    def _beaten(self, drop: Drop) -> Dropped:
        loser, winner = self.question.candidates[drop.loser], self.question.candidates[drop.winner]
        lead, worse = self.question.lead(winner, loser), self.question.wording.beaten
        by = f"{lead.estimate:.1f} points" if lead.scale == "points" else times(lead.estimate)
        why = f"{by} {worse} than {winner.name}{lead.at_least}"
        return Dropped(loser.name, drop.look, why, winner.name, lead, _runs(loser.row), self.task)

    @cached_property
    def _not_competing(self) -> list[Row]:
        competing = {candidate.name for candidate in self.question.candidates}
        return [row for row in self.rows if row.name not in competing and row.name not in self.question.twins]

    @cached_property
    def _less_accurate(self) -> Mapping[str, str]:
        """Why configurations may not win because of their accuracy, by name; none where a target decides about that."""
        if self.criteria.goal is not None or not self._not_competing:
            return {}
        return accurate_enough(self.rows, self.criteria.tolerances.accuracy).aside

    def _why_set_aside(self, row: Row) -> str:
        """Why a configuration that may not win need not run again; empty if it should."""
        if reason := self._less_accurate.get(row.name):
            return reason
        if self.criteria.goal is None:
            return f"which did not measure what {self.criteria.chosen} needs"
        longest = max(len(result.history) for result in row.results)
        if row.reached or longest < (self.criteria.grace or 0) or not _too_slow(row, self.rows):
            return ""
        return f"did not reach {self.criteria.goal} in any of its {tries(row)} runs"


@dataclass(frozen=True)
class Judgement:
    """A race as its results show it."""

    criteria: Criteria
    #: Of all tasks, in the order of first appearance.
    rows: tuple[Row, ...]
    #: At least one, which has no rows if no run finished.
    by_task: tuple[TaskJudgement, ...]

    @property
    def tasks(self) -> tuple[TaskJudgement, ...]:
        """Tasks of which any run finished."""
        return tuple(task for task in self.by_task if task.rows)

    @property
    def answers(self) -> dict[str, Recommendation]:
        """The answer for each task, by its name."""
        return {task.task: task.answer for task in self.by_task}

    @property
    def promise(self) -> dict[str, float]:
        """How good configurations are so far, by the names of their runs: more is better, those that may not win are
        last. For choosing whom a budget is spent on; it proves nothing."""
        promise = {}
        for task in self.tasks:
            sign = 1.0 if task.question.better == "more" else -1.0
            values = {candidate.name: sign * candidate.value for candidate in task.question.candidates}
            promise.update({run: values.get(row.name, -math.inf) for row in task.rows for run in _runs(row)})
        return promise

    @property
    def limits(self) -> list[Limit]:
        """After which training time runs of a race to a target are ended, for those that cannot win any more."""
        goal = self.criteria.goal
        return limits(self.rows, Target.parse(goal)) if goal and self.criteria.chosen == "time-to-accuracy" else []


def judge(
    results: Iterable[Result], criteria: Criteria = Criteria(), failures: Sequence[Failure] = (),  # noqa: B008 - frozen
    commands: Commands = Commands(),  # noqa: B008 - frozen
) -> Judgement:
    """Judge a race by its results; only finished runs have rows. `failures` are all runs that gave no result."""
    results = list(results)
    target = criteria.shown_target
    rows = compare(results, Target.parse(target) if target else None)
    commands = replace(commands, repetition=sum(row.mean("total_seconds") or 0.0 for row in rows))
    task_of = [Configuration.of(result).task for result in results]
    by_task = []
    for name, members in tasks_of(rows).items():
        tasks = {row.configuration.task for row in members}
        crashed = crashed_always(result for result, task in zip(results, task_of, strict=True)
                                 if not members or task in tasks)
        only = not members or set(task_of) <= tasks  # a run of no known task counts where there is one task
        failed = sum(not members or failure.task in tasks or (failure.task is None and only) for failure in failures)
        by_task.append(TaskJudgement(name, tuple(members), criteria, failed, crashed, commands))
    return Judgement(criteria, tuple(rows), tuple(by_task))


def _runs(row: Row) -> frozenset[str]:
    return frozenset(result.run for result in row.results)


def tries(row: Row) -> int:
    """Finished runs and those that were ended early."""
    return row.runs + row.ended


def _too_slow(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a configuration that never reached the target loses even if it reached it as often as may be.

    No success in n runs leaves a chance of success of less than `1 - error ** (1 / n)`, so it takes more than a run's
    time over that per success.
    """
    chance = 1 - (ERROR_RATE / max(1, len(rows) - 1)) ** (1 / tries(row))
    # A run that was ended early would have taken longer.
    spent = row.mean("train_seconds") if row.runs == tries(row) else _least_seconds(row)
    best = min((seconds for other in rows if (seconds := _per_success(other)) is not None), default=None)
    return spent is not None and best is not None and spent / chance > best


def _least_seconds(row: Row) -> float:
    ended = [result for result in row.failures if result.ended_early]
    return min(sum(epoch.seconds for epoch in result.history) for result in (*row.results, *ended))


def _per_success(row: Row) -> float | None:
    spent = row.spreads.get("train_seconds")
    return sum(spent.values) / row.reached if spent is not None and row.reached else None


