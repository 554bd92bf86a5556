"""Two configurations side by side: what differs, what each measured, and what their repetitions show.

Pure functions on plain data, no input or output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velodrome.judge.accuracy import difference, scores_of
from velodrome.judge.background_load import foreign_note
from velodrome.judge.configuration import Configuration
from velodrome.judge.measures import QUALITIES, Measure, Result, measures_of
from velodrome.judge.statistics import CONFIDENCE, Ratio, Spread, ratio
from velodrome.tasks.base import Metric

#: Measures that are judged.
_JUDGED = (*(measure.name for measure in QUALITIES), "examples_per_second", "train_seconds", "total_seconds")
_RATE = ("All of these statements hold together in 95 of 100 comparisons whose runs were not chosen by their results; "
         "only a race also accounts for rivals and for repeated checks (velodrome recommend).")


@dataclass(frozen=True)
class Line:
    """One measure of both."""

    measure: Measure
    #: What the runs of each measured; None where they have no value.
    spreads: tuple[Spread | None, Spread | None]

    @property
    def means(self) -> tuple[float | None, float | None]:
        first, second = (None if spread is None else spread.mean for spread in self.spreads)
        return first, second

    @property
    def ratio(self) -> Ratio | None:
        """A over B, with a 95 % interval for this measure alone."""
        return self.ratio_with(CONFIDENCE)

    def ratio_with(self, confidence: float) -> Ratio | None:
        """A over B; None where one of them has no value."""
        above, below = self.spreads
        return None if above is None or below is None else ratio(above, below, confidence)

    @property
    def judged(self) -> bool:
        """Whether a sentence says who is better in it."""
        place = self.ratio if self.measure.name in _JUDGED or self.measure.metric is not None else None
        return place is not None and place.has_interval


@dataclass(frozen=True)
class Pair:
    """A and B."""

    names: tuple[str, str]
    results: tuple[Sequence[Result], Sequence[Result]]
    differing: Mapping[str, tuple[Any, Any]]
    same: Mapping[str, Any]
    lines: tuple[Line, ...]

    def sentences(self) -> list[str]:
        """Which of the two is better in each measure, or why that cannot be decided or relied upon."""
        note = foreign_note([result for side in self.results for result in side])
        return [*self._judged(), *([f"Not reliable: {note}; repeat them on an idle machine."] if note else [])]

    def _judged(self) -> list[str]:
        counts = [len(side) for side in self.results]
        if min(counts) < 2:
            return [
                f"A is {self.names[0]}, B is {self.names[1]}. Not enough runs to decide whether one beats the other: "
                f"there are {_runs(counts[0])} of A and {_runs(counts[1])} of B, and at least two of each are needed."
            ]
        judged = [line for line in self.lines if line.judged]
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(judged))  # all together as sure as one alone (Bonferroni)
        found = [self._sentence(line, confidence) for line in judged]
        return [*found, _RATE] if found else []

    def _sentence(self, line: Line, confidence: float) -> str:
        place, measure = line.ratio_with(confidence), line.measure
        assert place is not None
        if measure.metric is not None and measure.metric.fraction:
            return self._points(measure, measure.metric, confidence)
        between = f"ratio {place.estimate:.3f}, between {place.low:.3f} and {place.high:.3f}"
        if not place.above_one and not place.below_one:
            return f"{measure.heading}: no significant difference ({between})."
        wins = place.above_one if measure.better == "more" else place.below_one
        first, second = self.names if wins else reversed(self.names)
        return f"{measure.heading}: {first} beats {second} ({between})."

    def _points(self, measure: Measure, metric: Metric, confidence: float) -> str:
        """A fraction of the test examples is compared in points: seeds and a finite test set both leave doubt."""
        found = difference(*(scores_of(side, metric.name, metric.fraction) for side in self.results))
        low, high = (100 * end for end in found.interval(confidence))
        between = f"between {low:.1f} and {high:.1f}".replace("-", "−")
        if low <= 0 <= high:
            apart = f"{100 * found.estimate:.1f}".replace("-", "−")
            return f"{measure.heading}: no significant difference (A − B is {apart} points, {between})."
        first, second = self.names if (low > 0) == (metric.better == "more") else reversed(self.names)
        apart = f"{100 * abs(found.estimate):.1f}"
        return f"{measure.heading}: {first} beats {second} by {apart} points ({between})."

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.names),
            "repetitions": [[result["run"] for result in side] for side in self.results],
            "differing": {name: list(values) for name, values in self.differing.items()},
            "measures": [
                {"name": line.measure.name, "values": list(line.means), "ratio": line.ratio and line.ratio.estimate,
                 "interval": [line.ratio.low, line.ratio.high] if line.ratio and line.ratio.has_interval else None}
                for line in self.lines
            ],
            "sentences": self.sentences(),
        }


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _spread(results: Sequence[Result], measure: Measure) -> Spread | None:
    values = tuple(value for result in results if (value := measure.read(result)) is not None)
    return Spread(values, measure.resolution(results[0]), measure.geometric) if values else None


def compare_pair(first: tuple[str, Sequence[Result]], second: tuple[str, Sequence[Result]]) -> Pair:
    """Put two named configurations, each with its finished repetitions, side by side."""
    fields = [Configuration.of(results[0]).fields for _, results in (first, second)]
    names = list(dict.fromkeys([*fields[0], *fields[1]]))
    differing = {name: (fields[0].get(name), fields[1].get(name)) for name in names
                 if fields[0].get(name) != fields[1].get(name)}
    lines = [Line(measure, (_spread(first[1], measure), _spread(second[1], measure)))
             for measure in measures_of([*first[1], *second[1]])]
    shared = ("dataset", "model", "engine", "strategy", "workers", "batch_size", "epochs", "optimizer", "learning_rate")
    return Pair(
        (first[0], second[0]), (first[1], second[1]), differing,
        {name: fields[0].get(name) for name in shared if name not in differing},
        tuple(line for line in lines if line.spreads != (None, None)),
    )
