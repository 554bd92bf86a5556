"""Runs that are ended early because they cannot win any more: when that is so, and how a result shows it.

A run that has trained for longer than another configuration takes to the target takes at least that long itself,
whatever its learning curve would have done: nothing is extrapolated. `judge/attempts.py` counts it as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velodrome.job.job import Target
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.measures import time_to_target

#: How many times as long as the longest run of the best a run may train.
FACTOR = 2.0


@dataclass(frozen=True)
class Limit:
    """Training seconds after which the next run of a configuration is ended, and who needs less."""

    seconds: float
    best: str
    longest: float
    target: Target
    #: Names of the configuration's finished runs.
    runs: frozenset[str]

    def reason(self, seconds: float) -> str:
        """Why a run that trained for so long was ended."""
        return (f"ended early: {seconds:.1f} s of training without {self.target}, which {self.best} reached in "
                f"{self.longest:.1f} s at most")


def limits(rows: Sequence[Row], target: Target) -> list[Limit]:
    """Limits for configurations that needed longer than that in every run so far.

    One that was fast in any run has none: it may be the best, and all of its runs are needed to show that.
    """
    return [found for members in tasks_of(rows).values() for found in _of_task(members, target)]


def _of_task(rows: Sequence[Row], target: Target) -> list[Limit]:
    times = {row.name: [time_to_target(result, target) for result in row.results] for row in rows}
    steady = {row.name: max(found) for row in rows
              if (found := [time for time in times[row.name] if time is not None]) and len(found) == row.attempts}
    if not steady:
        return []
    best = min(steady, key=lambda name: steady[name])
    seconds = FACTOR * steady[best]
    return [
        Limit(seconds, best, steady[best], target, frozenset(str(result["run"]) for result in row.results))
        for row in rows if all(time is None or time > seconds for time in times[row.name])
    ]
