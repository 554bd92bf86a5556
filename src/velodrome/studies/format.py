"""What a study file holds: races, where each setting comes from, published figures, and claims.

The five studies that come with Velodrome and the users' own are written in this format; `load.py` reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

ScaleName = Literal["smoke", "small", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "small", "full")
#: Fields of one configuration, as `{strategy: parameter-server, batch_size: 128}`; null where it must not be set.
Fields = dict[str, Any]
#: Fields with the values that are meant, as `{batch_size: [128, 256]}`.
Values = dict[str, list[Any]]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Block(_Part):
    """Jobs that share fields; what varies is multiplied, as in a race."""

    job: Fields = Field(default_factory=dict)
    vary: Values = Field(default_factory=dict)

    def combinations(self) -> Iterator[Fields]:
        """The fields of every job as published; `added` marks what was not part of the study."""
        for values in itertools.product(*self.vary.values()):
            fields = dict(self.job)
            for name, value in zip(self.vary, values, strict=True):
                fields.update(value if name == "entry" else {name: value})
            yield fields


class Scale(_Part):
    """How a study is scaled down: fields that replace the published ones, caps, and values that are kept."""

    job: Fields = Field(default_factory=dict)
    most: dict[str, int] = Field(default_factory=dict)
    only: Values = Field(default_factory=dict)


Origin = Literal["published", "assumed", "ours"]


class OriginRule(_Part):
    """Where the values of some fields come from: published with the place, assumed and why, or ours and why."""

    fields: list[str] = Field(min_length=1)
    #: Only of configurations that have these values; by default of all.
    of: Fields = Field(default_factory=dict)
    published: str | None = None
    assumed: str | None = None
    ours: str | None = None

    @model_validator(mode="after")
    def _has_one_origin(self) -> OriginRule:
        if len([text for text in (self.published, self.assumed, self.ours) if text]) != 1:
            raise ValueError("write one of published (the place in the document), assumed (why) or ours (why)")
        return self

    @property
    def origin(self) -> Origin:
        return "published" if self.published else "assumed" if self.assumed else "ours"

    @property
    def why(self) -> str:
        """The place in the document, or the reason."""
        return self.published or self.assumed or self.ours or ""


class Extent(_Part):
    """A quantity over the time of a run."""

    min: float
    mean: float
    max: float

    @model_validator(mode="after")
    def _in_order(self) -> Extent:
        if not self.min <= self.mean <= self.max:
            raise ValueError(f"the mean {self.mean:g} is not between {self.min:g} and {self.max:g}")
        return self


class Figure(_Part):
    """Published numbers of the configuration whose fields are these."""

    of: Fields
    place: str = ""
    values: dict[str, float | Extent] = Field(default_factory=dict)
    #: A value for each epoch, by the name of a row of the history: `train_accuracy: [0.87, 0.97]`.
    epochs: dict[str, list[float]] = Field(default_factory=dict)

    @property
    def means(self) -> dict[str, float]:
        return {name: value.mean if isinstance(value, Extent) else value for name, value in self.values.items()}

    @property
    def extents(self) -> dict[str, Extent]:
        return {name: value for name, value in self.values.items() if isinstance(value, Extent)}


class Curve(_Part):
    """A published quantity over a field: `over: workers, values: {speedup: {1: 1, 2: 1.9}}`."""

    of: Fields
    over: str = "workers"
    place: str = ""
    values: dict[str, dict[int, float]]

    def figures(self) -> Iterator[Figure]:
        """The same points as figures of one configuration each."""
        for quantity, points in self.values.items():
            for count, value in points.items():
                yield Figure(of={**self.of, self.over: count}, place=self.place, values={quantity: value})


class BatchCurves(_Part):
    """A figure of a training metric over batches, a line for each of the configurations among `where`."""

    where: Values = Field(default_factory=dict)
    metric: Literal["accuracy", "loss", "perplexity"] = "accuracy"
    #: Over what a point is a mean: one progress report of the run, or everything since the epoch began.
    mean: Literal["report", "epoch"] = "report"
    place: str = ""

    @model_validator(mode="after")
    def _has_a_mean(self) -> BatchCurves:
        if self.mean == "epoch" and self.metric == "perplexity":
            raise ValueError("perplexities have no mean: leave out mean, or draw the loss")
        return self


class _Check(_Part):
    #: Only among configurations with these values; by default among all.
    where: Values = Field(default_factory=dict)
    #: Configurations that the document excludes, by their published fields.
    exceptions: list[Values] = Field(default_factory=list, alias="except")


Sense = Literal["more", "less", "same"]


class Compare(_Check):
    """A measure of one group against that of another, in pairs that differ in nothing else.

    `more` and `less`: than `factor` times the other. `same`: within the share `within` of `factor` times the other; of
    metrics that are fractions, within so much.
    """

    kind: Literal["compare"]
    measure: str
    of: Fields
    than: Fields
    sense: Sense = Field(alias="is")
    factor: float = Field(1.0, gt=0)
    within: float = Field(0.05, gt=0)


class Largest(_Check):
    """One configuration has more of a measure than every other one among `where`."""

    kind: Literal["largest"]
    measure: str
    of: Fields


class Level(_Check):
    """A measure is more or less than a value, or the same within so much, in every configuration of `where`."""

    kind: Literal["level"]
    measure: str
    sense: Sense = Field(alias="is")
    value: float
    within: float = Field(0.01, gt=0)


class Scales(_Check):
    """Up to so many workers, the speedup over one worker is at least `share` of the ideal."""

    kind: Literal["scales"]
    to: int = Field(gt=1)
    share: float = Field(0.8, gt=0, le=1)


class Flattens(_Check):
    """From `beyond` to `to` workers, throughput grows by less than `share` of the ideal."""

    kind: Literal["flattens"]
    beyond: int = Field(ge=1)
    to: int
    share: float = Field(0.8, gt=0, le=1)


class Gap(_Check):
    """How many times `than` a measure of `of` is among `where`, against the same ratio among `against`: pairs of both
    have as many workers. Of metrics that are fractions, differences take the place of ratios."""

    kind: Literal["gap"]
    measure: str
    of: Fields
    than: Fields
    sense: Literal["more", "less"] = Field(alias="is")
    against: Values


Check = Annotated[Compare | Largest | Level | Scales | Flattens | Gap, Field(discriminator="kind")]


class Claim(_Part):
    """A conclusion of the document in our words, its place, and how it is checked on runs: all checks must hold."""

    text: str = Field(min_length=1)
    place: str = Field(min_length=1)
    checks: list[Check] = Field(default_factory=list)
    #: Why no run of this program can check it.
    unchecked: str | None = None
    #: What could explain that our runs disagree.
    explanations: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_checked_or_not(self) -> Claim:
        if bool(self.checks) == bool(self.unchecked):
            raise ValueError("write either checks, or unchecked with the reason")
        return self


@dataclass(frozen=True)
class Provenance:
    """Where the value of one field of one configuration comes from."""

    field: str
    value: Any
    origin: Origin
    why: str


def fits(fields: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a configuration has these values; null stands for a field that is not set."""
    return all(fields.get(name) == value for name, value in wanted.items())


def fits_any(fields: Mapping[str, Any], wanted: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a configuration has one of the values of every field."""
    return all(fields.get(name) in values for name, values in wanted.items())


class Study(_Part):
    """A study: what was published, and how it is run again."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")
    title: str
    source: str
    machines: str
    #: Where the published data was stored, if that is part of the study.
    stored: Literal["hdfs"] | None = None
    naming: Literal["plain", "published"] = "plain"
    notes: list[str] = Field(default_factory=list)
    #: What is shown of our runs where no numbers were published.
    measures: list[str] = ["accuracy", "seconds", "batches_per_second", "speedup"]
    races: list[Block] = Field(min_length=1)
    scales: dict[ScaleName, Scale] = {"full": Scale()}
    settings: list[OriginRule] = Field(default_factory=list)
    figures: list[Figure] = Field(default_factory=list)
    curves: list[Curve] = Field(default_factory=list)
    batches: list[BatchCurves] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)

    def combinations(self) -> list[Fields]:
        return [fields for block in self.races for fields in block.combinations()]

    def all_figures(self) -> list[Figure]:
        """Published figures, the points of curves among them."""
        return [*self.figures, *(figure for curve in self.curves for figure in curve.figures())]

    def provenance(self, configuration: Mapping[str, Any]) -> list[Provenance]:
        """Where each setting of a configuration comes from; of several rules that fit, the last decides.

        What no rule names is ours, and so is everything of a configuration that was not part of the study.
        """
        fields = {name: value for name, value in configuration.items() if name != "added"}
        rules = [rule for rule in self.settings if fits(configuration, rule.of)]
        names = dict.fromkeys([*fields, *(name for rule in rules for name in rule.fields)])
        deciding = {name: next((rule for rule in reversed(rules) if name in rule.fields), None) for name in names}
        if configuration.get("added"):
            return [Provenance(name, fields.get(name), "ours", "not part of the study") for name in fields]
        return [
            Provenance(name, fields.get(name), rule.origin if rule else "ours", rule.why if rule else "")
            for name, rule in deciding.items()
        ]
