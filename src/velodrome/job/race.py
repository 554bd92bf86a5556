"""A race: a base job, what to vary, how often to repeat. Expands to jobs and reports all mistakes at once.

How the runs of a race are named is in `job/names.py`.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from velodrome.catalog.options import Positive
from velodrome.catalog.registry import DEFAULT_ENGINE
from velodrome.errors import BadRequest, which_name
from velodrome.job.job import FIELDS_LISTED_BY, Job, field_taking, job_fields, make_job, reason_of
from velodrome.job.resolve import baselines, controls, resolve, varies_distribution, within_limits
from velodrome.job.values import entry_in_words, in_words, seconds_of, share_of

Prefix = Literal["dataset", "model"]
Seconds = Annotated[float, BeforeValidator(seconds_of)]
Share = Annotated[float, BeforeValidator(share_of)]

#: Fields that say how long a race runs and how it is judged, not what is raced: they may differ when it is resumed.
LIMITS = frozenset({
    "repeat", "until_sure", "max_repeat", "budget", "objective", "tolerance", "accuracy_margin", "grace",
})
#: Fields that the command line and the form of the page have an option for, in the order of their help.
OPTIONS = ("repeat", "until_sure", "budget", "max_repeat", "objective", "tolerance", "accuracy_margin", "grace",
           "baseline", "naming")


#: Jobs that a race may have, with all repetitions: each has a name, a folder and a row on pages.
MOST_JOBS = 10_000


class Race(BaseModel):
    """What a race file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: dict[str, Any] = Field(default_factory=dict, description="fields that all jobs share")
    vary: dict[str, list[Any]] = Field(
        default_factory=dict, description="field names with their values; `entry` takes partial jobs"
    )
    repeat: Positive = Field(
        1, description="runs of each configuration, with consecutive seeds; with `until_sure` at least this many"
    )
    until_sure: bool = Field(
        False, description="repeat until the best configuration is known, and drop those that are clearly worse; by "
        "default if nothing varies"
    )
    max_repeat: Positive = Field(30, description="with `until_sure`, run each configuration at most this often")
    budget: Seconds | None = Field(
        None, description="time limit for all runs together, such as 20m, 1h30m or 90s: runs that are expected to end "
                          "later do not start, and with `until_sure` configurations that do not fit are left out; by "
                          "default none, or 15m if nothing varies"
    )
    objective: str | None = Field(
        None, description="what decides: time-to-accuracy, accuracy, throughput or cost; by default time-to-accuracy "
        "if the race has a target, else throughput"
    )
    tolerance: Share | None = Field(
        None, description="treat differences below this share as ties, such as 5% or 0.05; by default 5%"
    )
    accuracy_margin: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="how much less accurate than the best a configuration may be and still win by another "
        "objective; by default 0.01"
    )
    grace: Positive | None = Field(
        None, description="with `until_sure` and a target: minimum epochs before a run may be stopped early, or its "
        "configuration dropped for missing the target"
    )
    baseline: bool | None = Field(
        None, description="whether to add each engine's `single` as a baseline if the distribution varies, and a "
                          "single worker if diloco has several; recorded when the race starts, by default true"
    )
    naming: Literal["plain", "published"] = Field(
        "plain", description="how runs are named: by engine, strategy and sizes (plain), or by [the published "
        "scheme](names.md)"
    )
    test_group: int | None = Field(
        None, ge=0, le=999, description="test group of published names: `MWM201` is run 1 of group 2; by default 0"
    )
    stamp: str | None = Field(
        None, pattern=r"^\d{6}-\d{6}$",
        description="time stamp of published names, such as 230713-102652; by default the start of the race"
    )
    sizes: dict[str, int] = Field(
        default_factory=dict, description="data sizes in published names, recorded when the race starts, so that a "
        "resumed race has the same names"
    )
    machine: str | None = Field(
        None, max_length=60, pattern=r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$",
        description="name of the machine in published names, recorded when the race starts"
    )
    prefix: list[Prefix] | None = Field(
        None, max_length=2, description="what plain names begin with: data set, model or both; by default those of "
                                        "which the race has more than one"
    )
    named_by: list[str] | None = Field(
        None, max_length=100, description="fields whose values are part of plain names, besides strategy, sizes and "
        "batch: those that vary, recorded when the race starts"
    )
    engine: str | None = Field(
        None, description="engine of jobs that name none, recorded when the race starts; by default torch, or "
        "tensorflow if only that is installed"
    )
    fitted: dict[str, Positive] = Field(
        default_factory=dict, description="workers that a study's jobs had when it first ran here, kept when it is "
        "resumed"
    )

    @property
    def most(self) -> int:
        """The most repetitions that it can have."""
        return max(self.repeat, self.max_repeat) if self.until_sure else self.repeat

    @model_validator(mode="after")
    def _has_few_enough_jobs(self) -> Race:
        """Refuse what nobody could run before anything is expanded."""
        if (sentence := _too_many(self)) is not None:
            raise PydanticCustomError("too_many_jobs", "{sentence}", {"sentence": sentence})
        return self

    @field_validator("vary")
    @classmethod
    def _varies(cls, vary: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if empty := [name for name, values in vary.items() if not values]:
            raise ValueError(f"{empty[0]!r} has no values: name at least one, or leave it out")
        vary = {field_taking(name, values): values for name, values in vary.items()}
        return {name: [*map(_entry, values)] if name == "entry" else values for name, values in vary.items()}


@dataclass(frozen=True)
class Entry:
    """One job of a race: which configuration it is, and which repetition."""

    name: str
    job: Job
    repetition: int
    #: Added as a baseline, not asked for.
    baseline: bool = False

    @property
    def configuration(self) -> str:
        """Equal for the repetitions of one configuration."""
        return self.job.model_copy(update={"seed": self.job.seed - self.repetition + 1}).model_dump_json()


@dataclass
class Combinations:
    """The jobs of a race, resolved and without names yet."""

    entries: list[Entry] = field(default_factory=list)
    #: A sentence for each combination that cannot be a job.
    wrong: list[str] = field(default_factory=list)
    #: Strategies that take part with fewer workers than was asked for, and with how many.
    adapted: dict[str, int] = field(default_factory=dict)


def parse_race(content: dict[str, Any]) -> Race:
    try:
        return Race.model_validate(content)
    except ValidationError as error:
        if (first := error.errors()[0])["type"] == "too_many_jobs":
            raise BadRequest(f"this race cannot run: {first['msg']}") from None
        raise BadRequest(f"this is not a race: {'; '.join(map(_sentence, error.errors()))}") from None


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        where = "put it under 'job'" if name in job_fields() else which_name(name, Race.model_fields)
        return f"no field {name!r}: {where}"
    return f"{name} {in_words(error['input'])!r}: {reason_of(error)}"


def parse_vary(words: list[str]) -> dict[str, list[Any]]:
    """`field=a,b` words; `entry=tensorflow/parameter-server:1,torch/ddp` names engine, strategy and servers at once."""
    varied: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values:
            raise BadRequest(f"--vary {word!r}: write it as field=value,value, for example workers=1,2")
        if name != "entry" and name not in job_fields():
            hint = which_name(name, ["entry", *job_fields()], FIELDS_LISTED_BY)
            raise BadRequest(f"--vary {word!r}: no field {name!r}; {hint}")
        items = [item.strip() for item in _split(word, values)]
        try:
            varied[name] = [_entry(item) for item in items] if name == "entry" else list(items)
        except ValueError as error:
            raise BadRequest(f"--vary entry: {error}") from None
    return varied


def _split(word: str, values: str) -> list[str]:
    """Values at their commas; double quotes hold a value with commas together, as in a CSV file."""
    try:
        return next(csv.reader([values], skipinitialspace=True, strict=True))
    except csv.Error:
        raise BadRequest(f"--vary {word!r}: a double quote is not closed, or text follows it") from None


def _entry(value: Any) -> dict[str, Any]:
    """An entry as fields: it may be written as `engine/strategy` or `engine/strategy:servers`."""
    if isinstance(value, dict):
        return value
    engine, slash, rest = str(value).partition("/")
    strategy, colon, servers = rest.partition(":")
    if not slash or not strategy or (colon and not servers.isdecimal()):
        raise ValueError(f"{in_words(value)!r} is not an entry; write engine/strategy or engine/strategy:servers")
    return {"engine": engine, "strategy": strategy, **({"servers": int(servers)} if colon else {})}


def refusal(wrong: list[str]) -> str:
    return "this race cannot run:\n  " + "\n  ".join(dict.fromkeys(wrong))


def _too_many(race: Race) -> str | None:
    """What is wrong with a race of more jobs than a race may have, which is known without expanding it."""
    configurations = math.prod(map(len, race.vary.values()))
    if configurations * race.most <= MOST_JOBS:
        return None
    limit = "max_repeat" if race.most > race.repeat else "repeat"
    return (f"it asks for {configurations * race.most:,} jobs ({configurations:,} × {limit} {race.most:,}), but a "
            f"race has at most {MOST_JOBS:,}: vary fewer values, or lower {limit}")


def varying(race: Race) -> Iterator[dict[str, Any]]:
    """The values of each combination, by the names of what varies."""
    for values in itertools.product(*race.vary.values()):
        yield dict(zip(race.vary, values, strict=True))


def combinations(race: Race) -> Combinations:
    """Every job of a race that can be, and a sentence for each that cannot.

    The baseline of most races is one process. So if strategies vary, one that is limited to one worker takes part with
    one, and once, unless its own entry names another number.
    """
    if (sentence := _too_many(race)) is not None:
        raise BadRequest(f"this race cannot run: {sentence}")
    expanded = Combinations()
    engine = race.engine or DEFAULT_ENGINE
    seen: dict[str, bool] = {}
    taking_part: list[tuple[Job, str]] = []
    for values in varying(race):
        entry = values.get("entry", {})
        try:
            fields = dict(race.job)
            for name, value in values.items():
                fields.update(value if name == "entry" else {name: value})
            asked = make_job(fields)
            adapts = "workers" not in entry and ("strategy" in values or "strategy" in entry)
            job = within_limits(asked, engine) if adapts else asked
            resolved = resolve(job, engine)
        except BadRequest as error:
            expanded.wrong.append(f"{_described(values) or 'the base job'}: {error}")
            continue
        adapted = job.workers != asked.workers
        if adapted:
            expanded.adapted[f"{resolved.engine}/{resolved.strategy}"] = job.workers
        key = resolved.model_dump_json()
        if key in seen and (adapted or seen[key]):
            continue
        seen[key] = adapted
        taking_part.append((job, resolved.engine))
        expanded.entries += _repetitions(resolved, race.repeat)
    if race.baseline:
        singles = baselines(taking_part) if varies_distribution(race.vary) else ()
        for added in (*singles, *controls(taking_part)):
            key = added.model_dump_json()
            if key not in seen:
                seen[key] = True
                expanded.entries += _repetitions(added, race.repeat, baseline=True)
    jobs = len(expanded.entries) // race.repeat * race.most
    if jobs > MOST_JOBS:
        raise BadRequest(f"this race cannot run: it asks for {jobs:,} jobs with its baselines, but a race has at most "
                         f"{MOST_JOBS:,}: vary fewer values, repeat them less often, or leave baselines out")
    return expanded


def _repetitions(job: Job, repeat: int, *, baseline: bool = False) -> list[Entry]:
    return [
        Entry("", job.model_copy(update={"seed": job.seed + number}), number + 1, baseline) for number in range(repeat)
    ]


def _described(values: Mapping[str, Any]) -> str:
    """A combination as `--vary` would have it."""
    return ", ".join(
        f"{name}={entry_in_words(value) if name == 'entry' else in_words(value)}" for name, value in values.items()
    )
