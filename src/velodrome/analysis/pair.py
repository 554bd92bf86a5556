"""Two configurations side by side: what differs, what each measured, and what their repetitions show.

Pure functions on plain data, no input or output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velodrome.analysis.accuracy import difference, scores_of
from velodrome.analysis.configuration import Configuration
from velodrome.analysis.foreign import foreign_note
from velodrome.analysis.measures import QUALITIES, Measure, Result, measures_of
from velodrome.analysis.statistics import Ratio, Spread, ratio
from velodrome.tasks.base import Metric

#: Measures that are judged.
_JUDGED = (*(measure.name for measure in QUALITIES), "examples_per_second", "train_seconds", "total_seconds")


@dataclass(frozen=True)
class Line:
    """One measure of both."""

    measure: Measure
    medians: tuple[float | None, float | None]
    #: A over B; None where one of them has no value.
    ratio: Ratio | None


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
        return [*self._judged(), *([f"Not reliable: {note}."] if note else [])]

    def _judged(self) -> list[str]:
        counts = [len(side) for side in self.results]
        if min(counts) < 2:
            return [
                f"A is {self.names[0]}, B is {self.names[1]}. Not enough runs to decide whether one beats the other: "
                f"there are {_runs(counts[0])} of A and {_runs(counts[1])} of B, and at least two of each are needed."
            ]
        return [sentence for line in self.lines if (sentence := self._sentence(line))]

    def _sentence(self, line: Line) -> str | None:
        place, measure = line.ratio, line.measure
        if (measure.name not in _JUDGED and measure.metric is None) or place is None or not place.has_interval:
            return None
        if measure.metric is not None and measure.metric.fraction:
            return self._points(measure, measure.metric)
        between = f"ratio {place.estimate:.3f}, 95 % interval {place.low:.3f} to {place.high:.3f}"
        if not place.above_one and not place.below_one:
            return f"{measure.heading}: no significant difference ({between})."
        wins = place.above_one if measure.better == "more" else place.below_one
        first, second = self.names if wins else reversed(self.names)
        return f"{measure.heading}: {first} beats {second} ({between})."

    def _points(self, measure: Measure, metric: Metric) -> str:
        """A fraction of the test examples is compared in points: seeds and a finite test set both leave doubt."""
        found = difference(*(scores_of(side, metric.name, metric.fraction) for side in self.results))
        low, high = (100 * end for end in found.interval())
        between = f"95 % interval {low:.1f} to {high:.1f}".replace("-", "−")
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
                {"name": line.measure.name, "values": list(line.medians), "ratio": line.ratio and line.ratio.estimate,
                 "interval": [line.ratio.low, line.ratio.high] if line.ratio and line.ratio.has_interval else None}
                for line in self.lines
            ],
            "sentences": self.sentences(),
        }


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _spread(results: Sequence[Result], measure: Measure) -> Spread | None:
    values = tuple(value for result in results if (value := measure.read(result)) is not None)
    return Spread(values, measure.resolution(results[0])) if values else None


def compare_pair(first: tuple[str, Sequence[Result]], second: tuple[str, Sequence[Result]]) -> Pair:
    """Put two named configurations, each with its finished repetitions, side by side."""
    fields = [Configuration.of(results[0]).fields for _, results in (first, second)]
    names = list(dict.fromkeys([*fields[0], *fields[1]]))
    differing = {name: (fields[0].get(name), fields[1].get(name)) for name in names
                 if fields[0].get(name) != fields[1].get(name)}
    lines = []
    for measure in measures_of([*first[1], *second[1]]):
        spreads = [_spread(results, measure) for _, results in (first, second)]
        above, below = spreads
        if above is None and below is None:
            continue
        place = ratio(above, below) if above is not None and below is not None else None
        medians = (None if above is None else above.median, None if below is None else below.median)
        lines.append(Line(measure, medians, place))
    shared = ("dataset", "model", "engine", "strategy", "workers", "batch_size", "epochs", "optimizer", "learning_rate")
    return Pair(
        (first[0], second[0]), (first[1], second[1]), differing,
        {name: fields[0].get(name) for name in shared if name not in differing}, tuple(lines),
    )
