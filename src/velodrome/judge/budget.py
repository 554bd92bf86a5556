"""The time of a race: how much longer its jobs will take, which configurations fit into its budget often enough for a
claim, and how it ended.

Pure functions, so that the plan of a race and the race itself decide alike. Nothing is claimed before the third
repetition (`judge/blocks.py`); a budget that ends earlier had better leave configurations out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from velodrome.catalog.registry import SINGLE
from velodrome.events.models import ProgressEvent
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.job.script import is_length, options_of
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.compare import Row
from velodrome.judge.configuration import Configuration
from velodrome.judge.estimate import Estimate
from velodrome.judge.judge import Dropped, TaskOutcome, tries
from velodrome.judge.phrases import as_option, counted, in_list, in_words

#: The share of a budget that disturbed runs may take which are repeated.
REPEATED_SHARE = 0.2


@dataclass(frozen=True)
class Contender:
    """A configuration, as far as a budget is concerned."""

    key: str
    #: Equal for configurations that are compared with one another.
    task: str
    #: Whether it is `single`, which the other configurations of its engine are compared with.
    baseline: bool
    #: Expected seconds of one run.
    seconds: float
    #: Repetitions of which it needs no run any more.
    done: int = 0
    #: How good it is or seems, more is better.
    promise: float = 0.0
    #: Whether its seconds rest on nothing that was measured.
    guessed: bool = False

    def needs(self, repetitions: int) -> float:
        """Seconds until it has so many runs."""
        return self.seconds * max(0, repetitions - self.done)


@dataclass(frozen=True)
class Affordable:
    """Which configurations fit into what is left of a budget, and what more would take."""

    #: The most promising first.
    kept: tuple[str, ...]
    #: The least promising first.
    left_out: tuple[str, ...]
    #: Whether two configurations that are compared reach the repetition after which something may be claimed.
    settles: bool
    #: Expected seconds until all configurations have reached it, and until the two that take least have.
    whole: float
    least: float


def contenders(
    jobs: Mapping[str, Job], seconds: Mapping[str, float], promise: Mapping[str, float], done: Mapping[str, int],
    guessed: Collection[str] = (),
) -> list[Contender]:
    """The configurations of a race by their keys; of an engine with several `single`, the best is the baseline."""
    tasks = {key: Configuration.of_job(job).task for key, job in jobs.items()}
    singles: dict[tuple[str, str], str] = {}
    for key, job in jobs.items():
        place = tasks[key], job.engine
        if job.strategy == SINGLE and (place not in singles or promise[key] > promise[singles[place]]):
            singles[place] = key
    return [Contender(key, tasks[key], key in singles.values(), seconds[key], done.get(key, 0), promise[key],
                      key in guessed) for key in jobs]


def afford(contenders: Sequence[Contender], left: float, repetitions: int = FIRST_LOOK) -> Affordable:
    """Keep the most promising configurations whose first repetitions fit; where no two fit, all are kept.

    Every engine's `single` stays if all of them fit: without it nothing is known about the others. What was measured
    and does not fit is not replaced by something that is only guessed to fit.
    """
    ranked, room = _ranked(contenders), max(0.0, left)
    pair, whole = _pair(ranked, repetitions), _needed(ranked, repetitions)
    least = _needed(pair, repetitions)
    singles = [contender for contender in ranked if contender.baseline]
    kept = singles if _needed(singles, repetitions) <= room else []
    lacking: set[str] = set()
    for contender in sorted(ranked, key=lambda contender: contender.guessed):
        if contender in kept or (contender.guessed and contender.task in lacking):
            continue
        if _needed([*kept, contender], repetitions) <= room:
            kept.append(contender)
        elif not contender.guessed:
            lacking.add(contender.task)
    if not _some_compared(kept):
        if not pair or least > room:
            return Affordable(tuple(contender.key for contender in ranked), (), not pair, whole, least)
        kept = pair
    names = [contender.key for contender in ranked if contender in kept]
    left_out = tuple(contender.key for contender in reversed(ranked) if contender not in kept)
    return Affordable(tuple(names), left_out, True, whole, least)


def _needed(contenders: Iterable[Contender], repetitions: int) -> float:
    return sum(contender.needs(repetitions) for contender in contenders)


def _some_compared(contenders: Sequence[Contender]) -> bool:
    """Whether any two belong to the same task; one that is alone in its task is compared with nothing."""
    return len({contender.task for contender in contenders}) < len(contenders)


def _ranked(contenders: Sequence[Contender]) -> list[Contender]:
    """Baselines first, then what was measured, then by promise; of several tasks, one of each in turn."""
    turns: dict[str, int] = {}
    places = {}
    for contender in sorted(contenders, key=lambda each: (not each.baseline, each.guessed, -each.promise)):
        turns[contender.task] = turns.get(contender.task, 0) + 1
        places[contender.key] = (not contender.baseline, contender.guessed, turns[contender.task], -contender.promise)
    return sorted(contenders, key=lambda contender: places[contender.key])


def _pair(ranked: Sequence[Contender], repetitions: int) -> list[Contender]:
    """The two configurations of a task that take least: measured ones, and a baseline among them, if there are any."""
    pairs = []
    for task in {contender.task for contender in ranked}:
        members = [contender for contender in ranked if contender.task == task]
        first = min(members, key=lambda each: (each.guessed, not each.baseline, each.needs(repetitions)))
        others = [contender for contender in members if contender is not first]
        if others:
            pairs.append([first, min(others, key=lambda each: (each.guessed, each.needs(repetitions)))])
    return min(pairs, key=lambda pair: _needed(pair, repetitions), default=[])


def cut_short(begun: Mapping[str, Collection[int]], repetitions: int = FIRST_LOOK) -> set[str]:
    """Configurations that ran, but are missing in an early repetition that a later one has followed.

    Nobody is out before the repetition after which something may be claimed, so only a budget leaves such gaps. `begun`
    has the repetitions of each configuration; one that never finished a run does not belong there.
    """
    newest = max((number for numbers in begun.values() for number in numbers), default=0)
    early = range(1, min(newest, repetitions + 1))
    return {key for key, numbers in begun.items() if numbers and not set(early) <= set(numbers)}


def steps_done(job: Job, progress: ProgressEvent, per_epoch: int) -> tuple[int, int]:
    """Steps that a job has done at a progress event, and its total; 0 if that is not known."""
    if job.script is not None:
        return progress.step, 0
    total = job.epochs * per_epoch
    return (progress.epoch - 1) * per_epoch + progress.step, min(total, job.steps) if job.steps else total


@dataclass(frozen=True)
class Progress:
    """A job of a race, while the race runs: what it was expected to take, and what it took."""

    expected: float
    ended: bool
    #: Of its training, from 0 to 1.
    share: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Remaining:
    """What is left of a race."""

    jobs: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.jobs} to go, about {in_words(self.seconds)}"


def remaining(jobs: Iterable[Progress]) -> Remaining:
    """Jobs to come and the seconds that they will take, corrected by how the ones so far did against expectation."""
    members = list(jobs)
    ended = [job for job in members if job.ended]
    spent, expected = sum(job.seconds for job in ended), sum(job.expected for job in ended)
    ahead = [job.expected * (1 - job.share) for job in members if not job.ended]
    return Remaining(len(ahead), sum(ahead) * (spent / expected if expected > 0 and spent > 0 else 1.0))


#: Seconds that a script is taken to run, for planning only, of which nothing is known.
_UNKNOWN_SCRIPT = 60.0


@dataclass(frozen=True)
class Tried:
    """A trial of a script: how long the whole of it is expected to take, and for how long it was watched."""

    job: Job
    seconds: float
    watched: float


def estimate_script(
    job: Job, earlier: Iterable[tuple[Job, Result]], tried: Sequence[Tried] = ()
) -> Estimate:
    """As long as runs of the same script took, in proportion to its steps or epochs; else what a trial shows; else as
    long as it took with the nearest number of workers."""
    by_distance: dict[int, list[float]] = {}
    for other, result in earlier:
        factor = _longer(other, job) if other.script == job.script else None
        if factor is not None:
            seconds = result.seconds
            whole = seconds.startup + (seconds.total - seconds.startup) * factor
            by_distance.setdefault(abs(other.workers - job.workers), []).append(whole)
    if same := by_distance.pop(0, []):
        return Estimate(median(same), "runs", len(same))
    for trial in tried:
        if (trial.job.workers, trial.job.script, trial.job.script_args) == (job.workers, job.script, job.script_args):
            return Estimate(trial.seconds, "measured", max(1.0, trial.watched))
    if by_distance:
        nearest = by_distance[min(by_distance)]
        return Estimate(median(nearest), "other workers", len(nearest))
    return Estimate(_UNKNOWN_SCRIPT, "guess")


def _longer(before: Job, other: Job) -> float | None:
    """How many times as long the second of two jobs of a script trains; None if its arguments do not tell."""
    first, second = (options_of(job.script_args) for job in (before, other))
    if first.keys() != second.keys():
        return None
    factor = 1.0
    for name, value in first.items():
        if value == second[name]:
            continue
        try:
            factor *= float(second[name]) / float(value) if is_length(name) else math.nan
        except (ValueError, ZeroDivisionError):
            return None
    return factor if 0 < factor < math.inf else None


Stopped = Literal["sure", "budget", "max-repeat", "hopeless"]


@dataclass(frozen=True)
class Ending:
    """Why a race ended, and how it stands."""

    stopped: Stopped
    repetitions: int
    tasks: tuple[TaskOutcome, ...]
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
        times = counted(self.repetitions, "repetition")
        if self.stopped == "sure":
            rest = self.not_run + self.left_out
            if not rest:
                return f"Settled after {times}."
            return (f"Settled after {times} without {in_list(rest)}, which the budget left out; raise --budget to "
                    "include them.")
        if self.stopped == "budget":
            lacking = f" before {in_list(self.not_run)} ran" if self.not_run else ""
            lacking += f" without {in_list(self.left_out)}" if self.left_out else ""
            more = "" if self.enough is None else (
                f": there is no verdict before repetition {FIRST_LOOK}, and --budget {as_option(self.enough)} would "
                "let two configurations reach it")
            return (f"Stopped by the budget in repetition {self.repetitions}{lacking}; raise --budget to "
                    f"continue{more}.")
        if self.stopped == "hopeless":
            return f"Stopped after {times}: no configuration can win."
        return f"Stopped after {times}, the maximum; raise --max-repeat to continue."

    def as_json(self) -> dict[str, Any]:
        return {
            "sure": self.sure, "stopped": self.stopped, "repetitions": self.repetitions,
            "tasks": [task.as_json() for task in self.tasks], "not_run": list(self.not_run),
            "left_out": list(self.left_out), "enough_seconds": self.enough,
        }


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
    repetitions = max((tries(row) for row in rows), default=0)
    seconds = {row.name: [result.seconds.total for result in row.results] for row in rows}
    ended = [result.seconds.total for row in rows for result in row.failures if result.ended_early]
    return Saving(
        len(rows), repetitions, sum(map(tries, rows)), sum(map(sum, seconds.values())) + sum(ended),
        sum(repetitions * sum(spent) / len(spent) for spent in seconds.values()), len(ended),
    )
