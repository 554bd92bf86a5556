"""The columns in which configurations are compared, for reports and terminals alike, and the best of each.

Every measure says where it is a column (`measures.py`), every ratio says it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from velodrome.judge.compare import Row, measure_of, qualities_of, tasks_of
from velodrome.judge.configuration import Baselines
from velodrome.judge.measures import MEASURES, QUALITIES, THROUGHPUT, TIME_TO_TARGET, Measure, View
from velodrome.judge.plausibility import suspects
from velodrome.judge.statistics import Ratio

#: Ratios of throughput, which are fields of a row: the views in which each is a column, with its place there.
RATIOS: Mapping[str, Mapping[View, int]] = {
    "speedup": {"results": 10, "terminal": 2},
    "scaling": {"results": 11, "terminal": 3},
    "efficiency": {"results": 12},
}
#: What rounding to two digits may change of a ratio, and a little more.
_ROUNDED = 0.01


@dataclass(frozen=True)
class Column:
    """A measure or a ratio of configurations, of which at least one has it."""

    name: str
    #: None for a ratio.
    measure: Measure | None
    #: For each row, by name, the best of its task; None where nothing is marked.
    best: Mapping[str, float | None]
    #: What to write beside values that do not hold, by the name of the row.
    suspect: Mapping[str, str]


def columns_of(rows: Sequence[Row], view: View) -> list[Column]:
    """The columns of a view that have values, in their order."""
    measures = [*qualities_of(rows), *(measure for measure in MEASURES if measure not in QUALITIES)]
    places = {measure.name: measure.shown[view] for measure in measures if view in measure.shown}
    places |= {name: shown[view] for name, shown in RATIOS.items() if view in shown}
    doubtful = suspects(rows)
    columns = []
    for name in sorted(places, key=lambda name: places[name]):
        if name in RATIOS:
            if any(getattr(row, name) is not None for row in rows):
                columns.append(Column(name, None, _best_ratios(rows, name), doubtful))
        elif any(name in row.spreads for row in rows):
            columns.append(Column(name, measure_of(rows, name), bests_of(rows, name), {}))
    return columns


def best_of(rows: Sequence[Row], measure: str) -> float | None:
    """The best mean of a column, or None if none is better than another."""
    better = measure_of(rows, measure).better
    if measure == TIME_TO_TARGET.name:
        rows = [row for row in rows if row.reached == row.attempts]
    values = [value for row in rows if (value := row.mean(measure)) is not None]
    if better is None or len(set(values)) < 2:
        return None
    return max(values) if better == "more" else min(values)


def bests_of(rows: Sequence[Row], measure: str) -> dict[str, float | None]:
    """For each row, by name, the best mean of its task."""
    return {row.name: best for members in tasks_of(rows).values() for best in [best_of(members, measure)]
            for row in members}


def _achieved(row: Row, name: str) -> bool:
    """Whether a ratio may be marked as the best: one worker scales ideally by definition."""
    return getattr(row, name) != Ratio(1.0) and (row.workers > 1 or name == "speedup")


def _best_ratios(rows: Sequence[Row], name: str) -> dict[str, float | None]:
    """For each row, by name, the best ratio of its task."""
    found: dict[str, float | None] = {}
    for members in tasks_of(rows).values():
        doubtful = suspects(members)
        others = [held.estimate for row in members
                  if (held := getattr(row, name)) and _achieved(row, name) and row.name not in doubtful]
        best = max(others, default=0.0)
        # A single ratio, or a best one that is slower than its baseline, is not marked.
        marked = len(others) > 1 and (best > 1 or name == "efficiency")
        found.update({row.name: best if marked and _achieved(row, name) else None for row in members})
    return found


def ratios_of_fewer(rows: Sequence[Row]) -> bool:
    """Whether a speedup or scaling is not the ratio of the means beside it, because it is of fewer runs: of the
    repetitions that both ran, without stragglers."""
    baselines = Baselines(row.configuration for row in rows)
    means = {row.configuration.key: row.mean(THROUGHPUT.name) for row in rows}
    for row in rows:
        for place, key in ((row.speedup, baselines.single(row.configuration)),
                           (row.scaling, baselines.alone(row.configuration))):
            mine, other = means[row.configuration.key], means.get(key or "")
            if place is not None and mine and other and abs(mine / other / place.estimate - 1) > _ROUNDED:
                return True
    return False
