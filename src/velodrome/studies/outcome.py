"""Published figures beside those of our runs, and published findings checked against our runs.

Pure functions on plain data, no input or output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from velodrome.judge.compare import Row
from velodrome.judge.conditions import is_loaded
from velodrome.judge.statistics import Ratio, ratio
from velodrome.studies.load import Claim, Study
from velodrome.studies.plan import Setting, StudyPlan
from velodrome.tasks.registry import deciding_metrics

Verdict = Literal["holds", "does not hold", "inconclusive", "cannot be checked at this scale"]
CANNOT: Verdict = "cannot be checked at this scale"
INCONCLUSIVE: Verdict = "inconclusive"
#: What "linear" and "nearly ideal" mean: this share of the ideal speedup over one worker.
LINEAR = 0.8


def _median(name: str, scale: float = 1.0) -> Callable[[Row, int], float | None]:
    def read(row: Row, cores: int) -> float | None:
        value = row.mean(name)
        return None if value is None else value / scale

    return read


def _cpu(row: Row, cores: int) -> float | None:
    value = row.mean("cpu_percent")
    return None if value is None else value / cores


def _network(row: Row, cores: int) -> float | None:
    values = [value for name in ("network_bytes", "loopback_bytes") if (value := row.mean(name)) is not None]
    return sum(values) / 1e6 if values else None


def _steps_per_worker(row: Row, cores: int) -> float | None:
    steps = [result.steps for result in row.results if result.steps]
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
    "total": Quantity("total s", ",.2f", _median("total_seconds")),
    "steps_per_worker": Quantity("steps per worker", ",.0f", _steps_per_worker),
    "cpu": Quantity("CPU %", ",.1f", _cpu),
    "memory": Quantity("memory GB", ",.2f", _median("memory_bytes", 1e9)),
    "network": Quantity("network MB", ",.1f", _network),
    "batches_per_second": Quantity("batches/s", ",.1f", _median("batches_per_second")),
    "speedup": Quantity("speedup", ".2f", _speedup),
}
#: The metrics of other tasks.
QUANTITIES |= {
    metric.name: Quantity(f"test {metric.name}", metric.form, _median(metric.name))
    for metric in deciding_metrics() if metric.name not in QUANTITIES
}


@dataclass(frozen=True)
class FigureComparison:
    """One configuration: what was published of it, and what we measured."""

    setting: Setting
    published: Mapping[str, float]
    ours: Mapping[str, float | None]
    run: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "configuration": self.setting.label, "published": dict(self.published), "ours": dict(self.ours),
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


def compare_figures(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[FigureComparison]:
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
        found.append(FigureComparison(setting, theirs, ours, None if row is None else row.representative.run))
    return found


@dataclass(frozen=True)
class Finding:
    """A claim and whether our runs confirm it."""

    claim: str
    verdict: Verdict
    why: str

    def as_json(self) -> dict[str, str]:
        return vars(self)


def findings(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[Finding]:
    """Every claim of a study, judged by runs whose workers have a core each.

    With repetitions a claim is decided by intervals; single runs are judged by their estimates, which `why` mentions.
    """
    fair = [row for row in rows if row.workers <= cores]
    return [_judge(claim, plan, fair, cores) for claim in plan.study.claims]


def _judge(claim: Claim, plan: StudyPlan, rows: Sequence[Row], cores: int) -> Finding:
    parts = [_higher(claim, plan, rows)] if claim.kind == "higher" else [
        _series(claim, dict(zip(claim.where, values, strict=True)), plan, rows, cores)
        for values in itertools.product(*claim.where.values())
    ]
    verdict = _together([verdict for verdict, _ in parts])
    reasons = list(dict.fromkeys(why for _, why in parts))
    if verdict != CANNOT and any(is_loaded(result) for row in rows for result in row.results if _concerns(claim, row)):
        verdict = INCONCLUSIVE
        reasons.append("other programs used the cores, too, so these figures decide nothing: repeat it on an idle "
                       "machine")
    if verdict == CANNOT and claim.to > cores:
        reasons.append(f"{claim.to} workers with a core each are needed, and there are {cores} cores")
    return Finding(claim.text, verdict, "; ".join(reasons))


def _concerns(claim: Claim, row: Row) -> bool:
    """Whether a claim is judged by a row."""
    engines = [*claim.where.get("engine", ()), *([claim.than] if claim.than else [])]
    fields = row.configuration.fields
    return fields["engine"] in engines and all(
        fields.get(name) in values for name, values in claim.where.items() if name != "engine"
    )


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim falls with any of its parts and stands only with all."""
    falling: tuple[Verdict, ...] = ("does not hold", CANNOT, INCONCLUSIVE)
    return next((verdict for verdict in falling if verdict in verdicts), "holds")


def _above_one(place: Ratio) -> Verdict:
    """Whether a ratio is more than 1: by its interval if it has one, by its estimate otherwise."""
    if not place.has_interval:
        return "holds" if place.estimate > 1 else "does not hold"
    return "holds" if place.above_one else "does not hold" if place.below_one else INCONCLUSIVE


def _chance(places: Sequence[Ratio]) -> str:
    """A caveat for verdicts that are based on single runs."""
    return "" if all(place.has_interval for place in places) else " (single runs: chance is not excluded)"


def _series(
    claim: Claim, where: Mapping[str, Any], plan: StudyPlan, rows: Sequence[Row], cores: int
) -> tuple[Verdict, str]:
    """One line of a figure: a configuration over its workers."""
    name = f"{where['engine']}, batch {where['batch_size']}"
    if (lacking := _lacking(plan, where)) is not None:
        return CANNOT, f"{name}: {lacking}"
    mine = {row.workers: row for row in rows if _matches(row, where) and row.scaling is not None}
    shown = ", ".join(f"{count}: {_shown(row.scaling)}" for count, row in sorted(mine.items()))
    why = f"{name}: speedup by workers {shown}" if shown else f"{name}: not run at this scale"
    if claim.kind == "flattens":
        return _flatter(claim, mine, why)
    # One worker is what the others are measured against.
    places = {
        count: row.scaling.divided_by(LINEAR * count) for count, row in mine.items()
        if row.scaling is not None and 1 < count <= claim.to
    }
    why += _chance(list(places.values()))
    verdict = _together([_above_one(place) for place in places.values()])
    # A curve that has bent before the claimed point does not straighten again.
    if claim.to not in mine and not (verdict == "does not hold" and claim.to <= cores):
        return CANNOT, why
    return verdict, why


def _flatter(claim: Claim, mine: Mapping[int, Row], why: str) -> tuple[Verdict, str]:
    """Whether more workers gain less than the ideal does."""
    if claim.beyond not in mine or claim.to not in mine:
        return CANNOT, why
    gain = ratio(mine[claim.to].spreads["examples_per_second"], mine[claim.beyond].spreads["examples_per_second"])
    if gain is None:
        return CANNOT, why
    ideal = LINEAR * claim.to / claim.beyond
    return _above_one(gain.inverted().divided_by(1 / ideal)), why + _chance([gain])


def _shown(place: Ratio | None) -> str:
    if place is None:
        return "–"
    interval = f" ({place.low:.2f}–{place.high:.2f})" if place.has_interval else ""
    return f"{place.estimate:.2f}{interval}"


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
    shown, places = [], []
    for row in rows:
        other = next((one for one in rows if one.configuration.fields["engine"] == second and _alike(row, one)), None)
        if row.configuration.fields["engine"] != first or other is None:
            continue
        if claim.measure == "speedup" and row.workers == 1:
            continue
        place = _over(row, other, claim.measure)
        if place is not None:
            shown.append(f"{row.configuration.size} workers, batch {row.batch_size}: {_shown(place)}")
            places.append(place)
    if not places:
        return CANNOT, f"no configuration ran with both {first} and {second}"
    why = f"{claim.measure} of {first} over that of {second}: {'; '.join(shown)}{_chance(places)}"
    return _together([_above_one(place) for place in places]), why


def _over(row: Row, other: Row, measure: str) -> Ratio | None:
    """How many times higher a measure of one row is than the same of another."""
    if measure != "speedup":
        return ratio(row.spreads["examples_per_second"], other.spreads["examples_per_second"])
    if row.scaling is None or other.scaling is None:
        return None
    return _quotient(row.scaling, other.scaling)


def _quotient(above: Ratio, below: Ratio) -> Ratio:
    """One ratio over another that was measured apart from it: on logarithms, the reaches of the intervals add up as
    deviations of independent things do."""
    estimate = above.estimate / below.estimate
    if above.low is None or above.high is None or below.low is None or below.high is None:
        return Ratio(estimate)
    down = math.hypot(math.log(above.estimate / above.low), math.log(below.high / below.estimate))
    up = math.hypot(math.log(above.high / above.estimate), math.log(below.estimate / below.low))
    return Ratio(estimate, estimate * math.exp(-down), estimate * math.exp(up))


def _alike(one: Row, other: Row) -> bool:
    names = ("dataset", "model", "batch_size", "workers", "servers")
    return all(one.configuration.fields.get(name) == other.configuration.fields.get(name) for name in names)
