"""What it would cost to settle an open question: further repetitions of those that are left, in runs and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from velodrome.judge.advice import Commands
from velodrome.judge.decide import MOST_MORE
from velodrome.judge.estimate import in_words
from velodrome.judge.objective import Question


@dataclass(frozen=True)
class Settling:
    """Further repetitions, and what each configuration that is left would take for them."""

    #: None if more than is sensible would be needed.
    repetitions: int | None
    #: Repetitions that there are.
    so_far: int
    #: Seconds of one run, by the name of the configuration.
    seconds: Mapping[str, float]
    #: Which option says what is too small to matter.
    option: str = "--tolerance"
    #: Whether only a larger test set could settle it.
    test_set: bool = False

    @property
    def runs(self) -> int | None:
        return None if self.repetitions is None else self.repetitions * len(self.seconds)

    @property
    def total_seconds(self) -> float | None:
        return None if self.repetitions is None else self.repetitions * sum(self.seconds.values())

    def sentence(self, commands: Commands) -> str:
        """What to do, and what it takes."""
        larger = f"choose the simplest, or accept a larger difference: `{commands.recommend(f'{self.option} 0.1')}`"
        if self.test_set:
            return f"only a larger test set would tell them apart: {larger}."
        if self.repetitions is None or self.total_seconds is None:
            return f"more than {MOST_MORE} further repetitions would be needed to tell them apart: {larger}."
        command = commands.again(self.so_far + self.repetitions, self.repetitions)
        return f"{command} (probably {self.runs} more runs, about {in_words(self.total_seconds)})."

    def cost(self, name: str) -> str:
        """`6 more runs, about 4 min`, for one of those that are left."""
        if self.repetitions is None:
            return f"more than {MOST_MORE} more runs"
        runs = "1 more run" if self.repetitions == 1 else f"{self.repetitions} more runs"
        return f"{runs}, about {in_words(self.repetitions * self.seconds[name])}"

    def as_json(self) -> dict[str, Any]:
        each = {name: {"runs": self.repetitions,
                       "seconds": None if self.repetitions is None else self.repetitions * seconds}
                for name, seconds in self.seconds.items()}
        return {"repetitions": self.repetitions, "runs": self.runs, "seconds": self.total_seconds, "each": each}


def settling(question: Question) -> Settling:
    """What it would cost to settle a question that is open."""
    seconds = {one.name: one.row.mean("total_seconds") or 0.0 for one in question.survivors}
    option = "--accuracy-margin" if question.scale == "points" else "--tolerance"
    return Settling(question.standing.more, question.standing.looks, seconds, option, bool(question.too_few_examples))
