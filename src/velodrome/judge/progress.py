"""How a race stands after each repetition: which configurations are out, since when and why, and whether it is decided.

Pure functions of the results, so that a stored race is judged exactly as it was while it ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from velodrome.job.job import Target
from velodrome.job.result import ended_early
from velodrome.judge.attempts import Limit, limits
from velodrome.judge.blocks import ERROR_RATE, FIRST_LOOK
from velodrome.judge.compare import Row, compare, tasks_of
from velodrome.judge.decide import Outcome
from velodrome.judge.measures import Result
from velodrome.judge.objective import accurate_enough, ask
from velodrome.judge.phrases import Lead, as_option, in_list, in_words, times
from velodrome.judge.question import Question, Tolerances, objective_of, target_of

#: Attempts of a configuration that all failed after which it is not tried again.
MOST_FAILURES = 2
#: How the loser of a comparison is called.
_WORSE = {"throughput": "slower", "time-to-accuracy": "slower", "cost": "more expensive", "accuracy": "less accurate"}


Stopped = Literal["sure", "budget", "max-repeat", "hopeless"]


@dataclass(frozen=True)
class Criteria:
    """What a race is judged by."""

    objective: str | None = None
    target: str | None = None
    margins: Tolerances = field(default_factory=Tolerances)
    #: Epochs before which no configuration is out for not reaching the target.
    grace: int | None = None

    @property
    def chosen(self) -> str:
        return objective_of(self.objective, None, self.target)

    def ask(self, rows: Sequence[Row]) -> Question:
        wanted = target_of(self.chosen, None, self.target)
        return ask(rows, self.chosen, wanted, margins=self.margins)

    def compare(self, results: Iterable[Result]) -> list[Row]:
        wanted = target_of(self.chosen, None, self.target)
        return compare(results, Target.parse(wanted) if wanted else None)


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
        times = "1 repetition" if self.after == 1 else f"{self.after} repetitions"
        return f"out after {times}: {self.name}{f' on {self.task}' if self.task else ''}, {self.why}"

    def as_json(self) -> dict[str, Any]:
        lead = self.lead
        ratio = lead if lead is not None and lead.scale == "ratio" else None
        return {
            "name": self.name, "task": self.task, "after": self.after, "beaten_by": self.beaten_by,
            "ratio": ratio and ratio.estimate, "points": lead.estimate if lead is not None and ratio is None else None,
            "interval": None if lead is None or lead.low is None else [lead.low, lead.high], "why": self.why,
        }


@dataclass(frozen=True)
class TaskStanding:
    """How the configurations of one data set and model stand."""

    task: str
    outcome: Outcome
    #: Names of those that are not out.
    survivors: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    #: Equal for configurations of the same task, as `Configuration.task`.
    key: str = field(default="", repr=False)
    #: Whether more repetitions cannot help: nobody reached the target.
    hopeless: bool = False
    #: Runs of configurations that do not compete, because they are the same training as another.
    twins: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def decided(self) -> bool:
        return self.outcome != "open" or self.hopeless

    def as_json(self) -> dict[str, Any]:
        return {"task": self.task, "outcome": self.outcome, "survivors": list(self.survivors)}


@dataclass(frozen=True)
class Ending:
    """Why a race ended, and how it stands."""

    stopped: Stopped
    repetitions: int
    tasks: tuple[TaskStanding, ...]
    dropped: tuple[Dropped, ...]
    #: Configurations that never ran, because the budget was over.
    not_run: tuple[str, ...] = ()
    #: Configurations that ran no more, because the others needed the budget; nobody has beaten them.
    left_out: tuple[str, ...] = ()
    #: Seconds of a budget that lets two configurations reach the first repetition after which something is claimed;
    #: None if they did.
    enough: float | None = None

    @property
    def sure(self) -> bool:
        return self.stopped == "sure"

    @property
    def sentence(self) -> str:
        """Why it ended."""
        times = "1 repetition" if self.repetitions == 1 else f"{self.repetitions} repetitions"
        if self.stopped == "sure":
            rest = self.not_run + self.left_out
            return f"Sure after {times}" + (f" without {in_list(rest)}, left out by the budget; a larger --budget "
                                            "includes them." if rest else ".")
        if self.stopped == "budget":
            lacking = f" before {in_list(self.not_run)} ran" if self.not_run else ""
            lacking += f" without {in_list(self.left_out)}" if self.left_out else ""
            more = "" if self.enough is None else (
                f": there is no verdict before repetition {FIRST_LOOK}, and --budget {as_option(self.enough)} would "
                "let two configurations reach it")
            return (f"Stopped by the budget in repetition {self.repetitions}{lacking}; a larger --budget "
                    f"continues{more}.")
        if self.stopped == "hopeless":
            return f"Stopped after {times}: no configuration can win."
        return f"Stopped after {times}, the most that were allowed; a larger --max-repeat continues."

    def as_json(self) -> dict[str, Any]:
        return {
            "sure": self.sure, "stopped": self.stopped, "repetitions": self.repetitions,
            "tasks": [task.as_json() for task in self.tasks], "not_run": list(self.not_run),
            "left_out": list(self.left_out), "enough_seconds": self.enough,
        }


def promises(results: Iterable[Result], criteria: Criteria) -> dict[str, float]:
    """How good configurations are so far, by the names of their runs: more is better, those that may not win are last.

    For choosing whom a budget is spent on; it proves nothing.
    """
    found = {}
    for rows in tasks_of(criteria.compare(results)).values():
        question = criteria.ask(rows)
        sign = 1.0 if question.better == "more" else -1.0
        values = {candidate.name: sign * candidate.value for candidate in question.candidates}
        found.update({name: values.get(row.name, -math.inf) for row in rows for name in _runs(row)})
    return found


def limits_of(results: Iterable[Result], criteria: Criteria) -> list[Limit]:
    """After which training time runs of a race to a target are ended, for those that cannot win any more."""
    wanted = target_of(criteria.chosen, None, criteria.target)
    if criteria.chosen != "time-to-accuracy" or wanted is None:
        return []
    return limits(criteria.compare(results), Target.parse(wanted))


def standings(results: Iterable[Result], criteria: Criteria) -> list[TaskStanding]:
    """How a race stands, task by task; only finished runs count."""
    return [
        _standing(task, members, criteria) for task, members in tasks_of(criteria.compare(results)).items() if members
    ]


def _standing(task: str, rows: Sequence[Row], criteria: Criteria) -> TaskStanding:
    question = criteria.ask(rows)
    standing = question.standing if question.candidates else None
    dropped = []
    for drop in standing.drops if standing is not None else ():
        loser, winner = question.candidates[drop.loser], question.candidates[drop.winner]
        lead = question.lead(winner, loser)
        why = f"{_in_words(lead, criteria.chosen)} than {winner.name}{lead.at_least}"
        dropped.append(Dropped(loser.name, drop.look, why, winner.name, lead, _runs(loser.row), task))
    named = {candidate.name for candidate in question.candidates}
    aside = [row for row in rows if row.name not in named and row.name not in question.twins]
    reasons = _reasons(rows, criteria) if aside else {}
    for row in aside:
        if (why := reasons.get(row.name) or _aside(row, rows, criteria)) and _tries(row) >= FIRST_LOOK and named:
            dropped.append(Dropped(row.name, _tries(row), why, runs=_runs(row), task=task))
    out = {one.name for one in dropped} | question.twins.keys()
    survivors = tuple(row.name for row in rows if row.name not in out)
    waiting = any(name not in named for name in survivors)
    outcome = standing.outcome if standing is not None and not waiting else "open"
    if outcome != "open" and question.survivors[0].name in question.seen_worse:
        outcome = "open"  # whether it may win is not settled
    hopeless = not named and min(row.runs for row in rows) >= FIRST_LOOK
    twins = frozenset[str]().union(*(_runs(row) for row in rows if row.name in question.twins))
    return TaskStanding(task, outcome, survivors, tuple(dropped), rows[0].configuration.task, hopeless, twins)


def _runs(row: Row) -> frozenset[str]:
    return frozenset(str(result["run"]) for result in row.results)


def _in_words(lead: Lead, objective: str) -> str:
    if lead.scale == "points":
        return f"{lead.estimate:.1f} points {_WORSE[objective]}"
    return f"{times(lead.estimate)} {_WORSE[objective]}"


def _reasons(rows: Sequence[Row], criteria: Criteria) -> Mapping[str, str]:
    """Why configurations may not win because of their accuracy, by name; none where a target decides about that."""
    if target_of(criteria.chosen, None, criteria.target) is not None:
        return {}
    return accurate_enough(rows, criteria.margins.accuracy).aside


def _aside(row: Row, rows: Sequence[Row], criteria: Criteria) -> str:
    """Why a configuration that may not win need not run again; empty if it should."""
    if target_of(criteria.chosen, None, criteria.target) is None:
        return f"which did not measure what {criteria.chosen} needs"
    longest = max(len(result.get("history") or ()) for result in row.results)
    if row.reached or longest < (criteria.grace or 0) or not _too_slow(row, rows):
        return ""
    return f"did not reach {criteria.target} in any of its {_tries(row)} runs"


def _too_slow(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a configuration that never reached the target loses even if it reached it as often as may be.

    No success in n runs leaves a chance of success of less than `1 - error ** (1 / n)`, so it takes more than a run's
    time over that per success.
    """
    chance = 1 - (ERROR_RATE / max(1, len(rows) - 1)) ** (1 / _tries(row))
    # A run that was ended early would have taken longer.
    spent = row.mean("train_seconds") if row.runs == _tries(row) else _least_seconds(row)
    best = min((seconds for other in rows if (seconds := _per_success(other)) is not None), default=None)
    return spent is not None and best is not None and spent / chance > best


def _tries(row: Row) -> int:
    """Finished runs and those that were ended early."""
    return row.runs + row.ended


def _least_seconds(row: Row) -> float:
    ended = [result for result in row.failures if ended_early(result)]
    return float(min(sum(entry["seconds"] for entry in result["history"]) for result in (*row.results, *ended)))


def _per_success(row: Row) -> float | None:
    spent = row.spreads.get("train_seconds")
    return sum(spent.values) / row.reached if spent is not None and row.reached else None


@dataclass(frozen=True)
class Saving:
    """What a race ran of the grid in which every configuration has as many runs as the one with the most."""

    configurations: int
    repetitions: int
    runs: int
    seconds: float
    grid_seconds: float
    #: Runs that were ended early.
    ended: int = 0

    @property
    def grid_runs(self) -> int:
        return self.configurations * self.repetitions

    @property
    def sentence(self) -> str:
        """`41 of the 120 runs of the full grid: 6 min of about 18 min.`"""
        grid = f"{self.configurations} configurations × {self.repetitions} repetitions"
        if self.runs >= self.grid_runs and not self.ended:
            return f"All {self.runs} runs of the grid took {in_words(self.seconds)} ({grid})."
        early = f", {self.ended} of them ended early," if self.ended else ""
        return (f"{self.runs} of the {self.grid_runs} runs of the full grid ({grid}){early} took "
                f"{in_words(self.seconds)} instead of about {in_words(self.grid_seconds)}.")

    def as_json(self) -> dict[str, Any]:
        return {"runs": self.runs, "of_runs": self.grid_runs, "seconds": self.seconds, "of_seconds": self.grid_seconds}


def saving(rows: Sequence[Row]) -> Saving:
    """What the drops of a race saved."""
    repetitions = max((_tries(row) for row in rows), default=0)
    seconds = {row.name: [_seconds(result) for result in row.results] for row in rows}
    ended = [_seconds(result) for row in rows for result in row.failures if ended_early(result)]
    return Saving(
        len(rows), repetitions, sum(map(_tries, rows)), sum(map(sum, seconds.values())) + sum(ended),
        sum(repetitions * sum(spent) / len(spent) for spent in seconds.values()), len(ended),
    )


def _seconds(result: Mapping[str, Any]) -> float:
    return float(result["seconds"].get("total") or 0.0)
