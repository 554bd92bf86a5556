"""Published figures beside those of our runs, with the difference and what noise it may be.

Pure functions on plain data, no input or output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from velodrome.judge.compare import Row
from velodrome.judge.measures import CONFIDENCE, t_quantile
from velodrome.studies.format import Extent, Study, fits
from velodrome.studies.plan import StudyPlan
from velodrome.studies.quantities import quantity_named
from velodrome.studies.settings import Setting, other_experiment, row_of

#: How far a run may be off by chance where nothing but its finite test set is known.
_TWO_SIDED = 1.96


@dataclass(frozen=True)
class FigureComparison:
    """One configuration: what was published of it, and what we measured."""

    setting: Setting
    published: Mapping[str, float]
    ours: Mapping[str, float | None]
    run: str | None
    #: Minimum and maximum over time, by quantity.
    published_extents: Mapping[str, Extent] = field(default_factory=dict)
    our_extents: Mapping[str, Extent] = field(default_factory=dict)
    #: A value for each epoch, by the name of a row of the history.
    published_epochs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    our_epochs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: How far one further run of ours may be from `ours` by chance; quantities of which that is not known are absent.
    noise: Mapping[str, float] = field(default_factory=dict)
    #: Where the numbers stand in the document.
    places: tuple[str, ...] = ()
    row: Row | None = field(default=None, repr=False)

    def difference(self, name: str) -> float | None:
        """Ours minus published; None where one of them is missing."""
        ours, published = self.ours.get(name), self.published.get(name)
        return None if ours is None or published is None else ours - published

    def within_noise(self, name: str) -> bool | None:
        """Whether the difference is what another run of ours may show; None where the noise is not known."""
        difference = self.difference(name)
        return None if difference is None or name not in self.noise else abs(difference) <= self.noise[name]

    def as_json(self) -> dict[str, Any]:
        compared = [name for name in self.published if self.difference(name) is not None]
        return {
            "configuration": self.setting.label, "published": dict(self.published), "ours": dict(self.ours),
            "published_extents": {name: extent.model_dump() for name, extent in self.published_extents.items()},
            "our_extents": {name: extent.model_dump() for name, extent in self.our_extents.items()},
            "epochs": {
                name: {"published": [*values], "ours": [*self.our_epochs.get(name, ())]}
                for name, values in self.published_epochs.items()
            },
            "difference": {name: self.difference(name) for name in compared},
            "within_noise": {name: self.within_noise(name) for name in compared},
            "places": [*self.places],
            "settings": {
                origin.field: {"value": origin.value, "origin": origin.origin, "why": origin.why}
                for origin in self.setting.provenance
            },
            "run": self.run, "differs": list(self.setting.changes), "missing": self.setting.missing,
            "in_study": not self.setting.added,
        }


def quantities_of(study: Study) -> list[str]:
    """What the study published numbers of; where it published none, what it measured."""
    published = [name for figure in study.all_figures() for name in figure.values]
    return list(dict.fromkeys(published)) or study.measures


def compare_figures(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[FigureComparison]:
    """Every configuration of the scale with what was published and what we measured."""
    names = quantities_of(plan.study)
    return [_compared(plan.study, setting, row_of(setting, rows), names, cores) for setting in plan.settings]


def _compared(
    study: Study, setting: Setting, row: Row | None, names: Sequence[str], cores: int
) -> FigureComparison:
    figures = [] if setting.added else [figure for figure in study.all_figures() if fits(setting.published, figure.of)]
    published: dict[str, float] = {}
    extents: dict[str, Extent] = {}
    epochs: dict[str, Sequence[float]] = {}
    for figure in figures:
        published |= figure.means
        extents |= figure.extents
        epochs |= figure.epochs
    ours = {name: None if row is None else quantity_named(name).read(row, cores) for name in names}
    if row is None:
        return FigureComparison(setting, published, ours, None, extents, published_epochs=epochs,
                                places=_places(figures))
    noise = {name: reach for name in names if (reach := _noise(setting, row, name, cores)) is not None}
    return FigureComparison(
        setting, published, ours, row.representative.run, extents, published_epochs=epochs,
        our_epochs={name: values for name in epochs if (values := epoch_means(row, name))}, noise=noise,
        places=_places(figures), row=row,
    )


def _places(figures: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(figure.place for figure in figures if figure.place))


def epoch_means(row: Row, name: str) -> list[float]:
    """The mean over the runs after each epoch, as far as every run reports it."""
    means = []
    for entries in zip(*(result.history for result in row.results), strict=False):
        values = [entry.value(name) for entry in entries]
        if any(value is None for value in values):
            break
        means.append(fmean(value for value in values if value is not None))
    return means


def _noise(setting: Setting, row: Row, name: str, cores: int) -> float | None:
    """How far one further run may be from the mean: a prediction interval of 95 % over runs with other seeds; of one
    run, what two finite test sets of this size explain. None for what another job measured than was published."""
    quantity = quantity_named(name)
    if other_experiment(setting, steady=quantity.steady):
        return None
    values = [*quantity.values(row, cores).values()]
    if len(values) > 1:
        reach = t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * stdev(values) * math.sqrt(1 + 1 / len(values))
        return float(reach)
    test = row.results[0].test
    if values and quantity.metric is not None and quantity.fraction and test is not None and test.total:
        share = min(max(values[0], 0.0), 1.0)
        return _TWO_SIDED * math.sqrt(2 * share * (1 - share) / test.total)
    return None
