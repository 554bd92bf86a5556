"""Studies by name: what was published, as one YAML file each beside this module."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from velodrome.clusters.yaml_files import parse_yaml
from velodrome.errors import BadRequest, which_name

ScaleName = Literal["smoke", "small", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "small", "full")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Block(_Part):
    """Jobs that share fields; what varies is multiplied, as in a race."""

    job: dict[str, Any] = Field(default_factory=dict)
    vary: dict[str, list[Any]] = Field(default_factory=dict)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """The fields of every job as published; `added` marks what was not part of the study."""
        for values in itertools.product(*self.vary.values()):
            fields = dict(self.job)
            for name, value in zip(self.vary, values, strict=True):
                fields.update(value if name == "entry" else {name: value})
            yield fields


class Scale(_Part):
    """How a study is scaled down: fields that replace the published ones, caps, and values that are kept."""

    job: dict[str, Any] = Field(default_factory=dict)
    most: dict[str, int] = Field(default_factory=dict)
    only: dict[str, list[Any]] = Field(default_factory=dict)


class Figure(_Part):
    """Published numbers of the configuration whose fields are these."""

    of: dict[str, Any]
    values: dict[str, float]


class Claim(_Part):
    """A published finding in words, and how it is checked on runs."""

    text: str
    kind: Literal["scales", "flattens", "higher"]
    #: Fields with the values that the claim is about.
    where: dict[str, list[Any]]
    to: int = 1
    beyond: int = 1
    measure: Literal["throughput", "speedup"] = "throughput"
    than: str | None = None


class Study(_Part):
    """A published study."""

    name: str
    title: str
    source: str
    machines: str
    #: Where the published data was stored, if that is part of the study.
    stored: Literal["hdfs"] | None = None
    naming: Literal["plain", "published"] = "plain"
    notes: list[str] = Field(default_factory=list)
    #: What is shown of our runs where no numbers were published.
    measures: list[str] = ["accuracy", "seconds", "batches_per_second", "speedup"]
    races: list[Block]
    scales: dict[ScaleName, Scale]
    figures: list[Figure] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)

    def combinations(self) -> list[dict[str, Any]]:
        return [fields for block in self.races for fields in block.combinations()]


@cache
def studies() -> dict[str, Study]:
    """Every study by its name, in the order of their names."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml")]
    found = [Study.model_validate(parse_yaml(file.read_text(encoding="utf-8"))) for file in files]
    return {study.name: study for study in sorted(found, key=lambda study: study.name)}


def study_named(name: str) -> Study:
    known = studies()
    if name not in known:
        raise BadRequest(f"no study {name!r}: {which_name(name, known, 'velodrome study list')}")
    return known[name]


def scale_named(name: str) -> ScaleName:
    for known in SCALES:
        if name == known:
            return known
    raise BadRequest(f"--scale {name!r}: choose one of {', '.join(SCALES)}")
