"""What the budget of a race can settle: which configurations fit into it as often as a first claim needs.

Pure functions, so that the plan of a race and the race itself decide alike. Nothing is claimed before the third
repetition (`judge/blocks.py`); a budget that ends earlier had better leave configurations out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from velodrome.catalog.registry import SINGLE
from velodrome.job.job import Job
from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.configuration import Configuration

#: The share of a budget that disturbed runs may take which are repeated.
REPEATED_SHARE = 0.2
#: Budgets that are suggested exceed what is expected by this share, because estimates err.
_SLACK = 1.1


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
    jobs: Mapping[str, Job], seconds: Mapping[str, float], promise: Mapping[str, float], done: Mapping[str, int]
) -> list[Contender]:
    """The configurations of a race by their keys; of an engine with several `single`, the best is the baseline."""
    tasks = {key: Configuration.of({"job": job.model_dump()}).task for key, job in jobs.items()}
    singles: dict[tuple[str, str], str] = {}
    for key, job in jobs.items():
        place = tasks[key], job.engine
        if job.strategy == SINGLE and (place not in singles or promise[key] > promise[singles[place]]):
            singles[place] = key
    return [Contender(key, tasks[key], key in singles.values(), seconds[key], done.get(key, 0), promise[key])
            for key in jobs]


def afford(contenders: Sequence[Contender], left: float, repetitions: int = FIRST_LOOK) -> Affordable:
    """Keep the most promising configurations whose first repetitions fit; where no two fit, all are kept.

    Every engine's `single` comes first: without it nothing is known about the others.
    """
    ranked = _ranked(contenders)
    whole, least = sum(one.needs(repetitions) for one in ranked), _least(ranked, repetitions)
    kept: list[Contender] = []
    for one in ranked:
        if sum(other.needs(repetitions) for other in (*kept, one)) <= max(0.0, left):
            kept.append(one)
    settles = _some_compared(kept) or not _some_compared(ranked)
    if not _some_compared(kept):
        return Affordable(tuple(one.key for one in ranked), (), settles, whole, least)
    names = [one.key for one in kept]
    out = tuple(one.key for one in reversed(ranked) if one.key not in names)
    return Affordable(tuple(names), out, True, whole, least)


def _some_compared(contenders: Sequence[Contender]) -> bool:
    """Whether any two belong to the same task; one that is alone in its task is compared with nothing."""
    return len({one.task for one in contenders}) < len(contenders)


def _ranked(contenders: Sequence[Contender]) -> list[Contender]:
    """Baselines first, then by promise; of several tasks, one of each in turn."""
    turns: dict[str, int] = {}
    places = {}
    for one in sorted(contenders, key=lambda one: (not one.baseline, -one.promise)):
        turns[one.task] = turns.get(one.task, 0) + 1
        places[one.key] = (not one.baseline, turns[one.task], -one.promise)
    return sorted(contenders, key=lambda one: places[one.key])


def _least(ranked: Sequence[Contender], repetitions: int) -> float:
    """What the two configurations of a task take that take least, a baseline being one of them if there is one."""
    found = []
    for task in {one.task for one in ranked}:
        members = [one for one in ranked if one.task == task]
        first = min([one for one in members if one.baseline] or members, key=lambda one: one.needs(repetitions))
        others = [one.needs(repetitions) for one in members if one is not first]
        if others:
            found.append(first.needs(repetitions) + min(others))
    return min(found, default=0.0)


def cut_short(begun: Mapping[str, Collection[int]], repetitions: int = FIRST_LOOK) -> set[str]:
    """Configurations that ran, but are missing in an early repetition that a later one has followed.

    Nobody is out before the repetition after which something may be claimed, so only a budget leaves such gaps. `begun`
    has the repetitions of each configuration; one that never finished a run does not belong there.
    """
    newest = max((number for numbers in begun.values() for number in numbers), default=0)
    early = range(1, min(newest, repetitions + 1))
    return {key for key, numbers in begun.items() if numbers and not set(early) <= set(numbers)}


def as_option(seconds: float) -> str:
    """A budget that is expected to be enough, as `--budget` takes it: `40s`, `12m`, `3h`."""
    wanted = seconds * _SLACK
    if wanted < 100:
        return f"{math.ceil(wanted / 5) * 5}s"
    if wanted < 5400:
        return f"{math.ceil(wanted / 60)}m"
    hours, minutes = divmod(math.ceil(wanted / 600) * 10, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"
