"""Ours beside theirs: published figures next to what our runs measured, and published findings checked on them.

Pure functions on plain data, no input or output.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from velodrome.analysis.compare import Row
from velodrome.studies.load import Claim, Study
from velodrome.studies.plan import Setting, StudyPlan

Verdict = Literal["holds", "does not hold", "cannot be checked at this scale"]
CANNOT: Verdict = "cannot be checked at this scale"
#: What "linear" and "nearly ideal" mean: this share of the ideal speedup over one worker.
LINEAR = 0.8


def _median(name: str, scale: float = 1.0) -> Callable[[Row, int], float | None]:
    def read(row: Row, cores: int) -> float | None:
        value = row.median(name)
        return None if value is None else value / scale

    return read


def _cpu(row: Row, cores: int) -> float | None:
    value = row.median("cpu_percent")
    return None if value is None else value / cores


def _network(row: Row, cores: int) -> float | None:
    values = [value for name in ("network_bytes", "loopback_bytes") if (value := row.median(name)) is not None]
    return sum(values) / 1e6 if values else None


def _steps_per_worker(row: Row, cores: int) -> float | None:
    steps = [result["steps"] for result in row.results if result.get("steps")]
    return steps[0] / row.workers if steps else None


def _speedup(row: Row, cores: int) -> float | None:
    """Over the engine's `single`, or over the strategy's own one-worker run where a study has no `single`."""
    place = row.speedup or row.scaling
    return place.estimate if place else None


@dataclass(frozen=True)
class Quantity:
    """A published quantity: its heading, how it is written, and how ours is read."""

    heading: str
    form: str
    read: Callable[[Row, int], float | None]


QUANTITIES: dict[str, Quantity] = {
    "accuracy": Quantity("test accuracy", ".4f", _median("accuracy")),
    "perplexity": Quantity("test perplexity", ",.1f", _median("perplexity")),
    "seconds": Quantity("training s", ",.1f", _median("train_seconds")),
    "total": Quantity("in all s", ",.2f", _median("total_seconds")),
    "steps_per_worker": Quantity("steps a worker", ",.0f", _steps_per_worker),
    "cpu": Quantity("CPU %", ",.1f", _cpu),
    "memory": Quantity("memory GB", ",.2f", _median("memory_bytes", 1e9)),
    "network": Quantity("network MB", ",.1f", _network),
    "batches_per_second": Quantity("batches/s", ",.1f", _median("batches_per_second")),
    "speedup": Quantity("speedup", ".2f", _speedup),
}


@dataclass(frozen=True)
class Beside:
    """One configuration: what was published of it, and what we measured."""

    setting: Setting
    theirs: Mapping[str, float]
    ours: Mapping[str, float | None]
    run: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "configuration": self.setting.label, "published": dict(self.theirs), "ours": dict(self.ours),
            "run": self.run, "differs": list(self.setting.changes), "missing": self.setting.missing,
            "in_study": not self.setting.added,
        }


def quantities_of(study: Study) -> list[str]:
    """What the study published numbers of; where it published none, what it measured."""
    return list(dict.fromkeys(name for figure in study.figures for name in figure.values)) or study.measures


def row_of(setting: Setting, rows: Sequence[Row]) -> Row | None:
    """Our row for a setting: the one whose job has all its fields."""
    if setting.ours is None:
        return None
    for row in rows:
        if all(row.configuration.fields.get(name) == value for name, value in setting.ours.items()):
            return row
    return None


def beside(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[Beside]:
    """Every configuration of the scale with what was published and what we measured."""
    names = quantities_of(plan.study)
    found = []
    for setting in plan.settings:
        theirs: dict[str, float] = {}
        for figure in plan.study.figures:
            if all(setting.published.get(name) == value for name, value in figure.of.items()) and not setting.added:
                theirs.update(figure.values)
        row = row_of(setting, rows)
        ours = {name: None if row is None else QUANTITIES[name].read(row, cores) for name in names}
        found.append(Beside(setting, theirs, ours, None if row is None else str(row.representative["run"])))
    return found


@dataclass(frozen=True)
class Finding:
    """A claim and what our runs say to it."""

    claim: str
    verdict: Verdict
    why: str

    def as_json(self) -> dict[str, str]:
        return vars(self)


def findings(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[Finding]:
    """Every claim of a study, judged by runs whose workers have a core each."""
    fair = [row for row in rows if row.workers <= cores]
    return [_judge(claim, plan, fair, cores) for claim in plan.study.claims]


def _judge(claim: Claim, plan: StudyPlan, rows: Sequence[Row], cores: int) -> Finding:
    parts = [_higher(claim, plan, rows)] if claim.kind == "higher" else [
        _series(claim, dict(zip(claim.where, values, strict=True)), plan, rows, cores)
        for values in itertools.product(*claim.where.values())
    ]
    verdicts = [verdict for verdict, _ in parts]
    verdict: Verdict = "does not hold" if "does not hold" in verdicts else CANNOT if CANNOT in verdicts else "holds"
    told = list(dict.fromkeys(why for _, why in parts))
    if verdict == CANNOT and claim.to > cores:
        told.append(f"{claim.to} workers with a core each are needed, and there are {cores} cores")
    return Finding(claim.text, verdict, "; ".join(told))


def _series(
    claim: Claim, where: Mapping[str, Any], plan: StudyPlan, rows: Sequence[Row], cores: int
) -> tuple[Verdict, str]:
    """One line of a figure: a configuration over its workers."""
    name = f"{where['engine']}, batch {where['batch_size']}"
    if (lacking := _lacking(plan, where)) is not None:
        return CANNOT, f"{name}: {lacking}"
    mine = {row.workers: row for row in rows if _matches(row, where) and row.scaling is not None}
    shown = ", ".join(f"{count}: {_scaling(row):.2f}" for count, row in sorted(mine.items()))
    told = f"{name}: speedup by workers {shown}" if shown else f"{name}: not run at this scale"
    points = (claim.to,) if claim.kind == "scales" else (claim.beyond, claim.to)
    if any(point not in mine for point in points):
        # A curve that has bent before the claimed point does not straighten again.
        early = [row for count, row in mine.items() if count <= points[0] and _scaling(row) < LINEAR * count]
        if claim.kind == "scales" and early and claim.to <= cores:
            return "does not hold", told
        return CANNOT, told
    if claim.kind == "scales":
        holds = all(_scaling(row) >= LINEAR * count for count, row in mine.items() if count <= claim.to)
    else:
        gain = _scaling(mine[claim.to]) / _scaling(mine[claim.beyond])
        holds = gain < LINEAR * claim.to / claim.beyond
    return ("holds" if holds else "does not hold"), told


def _scaling(row: Row) -> float:
    return row.scaling.estimate if row.scaling else 0.0


def _matches(row: Row, where: Mapping[str, Any]) -> bool:
    return all(row.configuration.fields.get(name) == value for name, value in where.items())


def _lacking(plan: StudyPlan, where: Mapping[str, Any]) -> str | None:
    """Why nothing of a part of the study ran."""
    mine = [s for s in plan.settings if all(s.published.get(name) == value for name, value in where.items())]
    reasons = [setting.missing for setting in mine if setting.missing]
    return reasons[0] if mine and len(reasons) == len(mine) else None


def _higher(claim: Claim, plan: StudyPlan, rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Whether one engine is above another wherever both ran the same; with repetitions, beyond chance."""
    first, second = claim.where["engine"][0], str(claim.than)
    for engine in (first, second):
        if (lacking := _lacking(plan, {"engine": engine})) is not None:
            return CANNOT, lacking
    told, verdicts = [], []
    for row in rows:
        other = next((one for one in rows if one.configuration.fields["engine"] == second and _alike(row, one)), None)
        if row.configuration.fields["engine"] != first or other is None:
            continue
        values = [_value(one, claim.measure) for one in (row, other)]
        if claim.measure == "speedup" and row.workers == 1:
            continue
        told.append(f"{row.configuration.size} workers, batch {row.batch_size}: {values[0]:,.1f} and {values[1]:,.1f}")
        verdicts.append(values[0] > values[1])
    if not verdicts:
        return CANNOT, f"no configuration ran with both {first} and {second}"
    why = f"{claim.measure} of {first} and {second}: {'; '.join(told)}"
    return ("holds" if all(verdicts) else "does not hold"), why


def _value(row: Row, measure: str) -> float:
    return _scaling(row) if measure == "speedup" else row.examples_per_second


def _alike(one: Row, other: Row) -> bool:
    names = ("dataset", "model", "batch_size", "workers", "servers")
    return all(one.configuration.fields.get(name) == other.configuration.fields.get(name) for name in names)
