"""A race: a base job, what to vary, how often to repeat. Expands to jobs and reports all mistakes at once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from velodrome.errors import BadRequest
from velodrome.spec.job import Job, Positive
from velodrome.spec.read import make_job
from velodrome.spec.resolve import resolve

Prefix = Literal["dataset", "model"]


class Race(BaseModel):
    """What a race file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: dict[str, Any] = Field(default_factory=dict, description="fields that all jobs share")
    vary: dict[str, list[Any]] = Field(
        default_factory=dict, description="field names with their values; `entry` takes partial jobs"
    )
    repeat: Annotated[int, Field(ge=1)] = Field(1, description="runs of each configuration, with seeds that count up")
    naming: Literal["plain", "published"] = Field(
        "plain", description="how runs are named: by engine, strategy and sizes (plain), or by [the published "
        "scheme](names.md)"
    )
    stamp: str | None = Field(
        None, pattern=r"^\d{6}-\d{6}$", description="time stamp of published names, as 230713-102652; by default the "
        "start of the race"
    )
    sizes: dict[str, int] = Field(
        default_factory=dict, description="data sizes in published names, recorded when the race starts, so that a "
        "resumed race has the same names"
    )
    machine: str | None = Field(
        None, pattern=r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$", description="name of the machine in published names, "
        "recorded like the sizes"
    )
    prefix: list[Prefix] | None = Field(
        None, description="what plain names begin with: data set, model or both; by default those of which the race "
        "has several"
    )
    fitted: dict[str, Positive] = Field(
        default_factory=dict, description="workers that a study's jobs had when it first ran here, kept when it is "
        "resumed"
    )

    @field_validator("vary")
    @classmethod
    def _varies(cls, vary: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if empty := [name for name, values in vary.items() if not values]:
            raise ValueError(f"{empty[0]!r} has no values: name at least one, or leave it out")
        return vary


@dataclass(frozen=True)
class Entry:
    """One job of a race: which configuration it is, and which repetition."""

    name: str
    job: Job
    repetition: int


def parse_race(content: dict[str, Any]) -> Race:
    try:
        return Race.model_validate(content)
    except ValidationError as error:
        parts = [
            f"{'.'.join(map(str, part['loc']))} {str(part['input'])[:60]!r}: {_reason(part['msg'])}"
            for part in error.errors()
        ]
        raise BadRequest(f"this is not a race: {'; '.join(parts)}") from None


def _reason(message: str) -> str:
    return message.removeprefix("Value error, ")


def parse_vary(words: list[str]) -> dict[str, list[Any]]:
    """`field=a,b` words; `entry=tensorflow/parameter-server:1,torch/ddp` names engine, strategy and servers at once."""
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values:
            raise BadRequest(f"--vary {word!r}: write it as field=value,value, for example workers=1,2")
        if name != "entry" and name not in Job.model_fields:
            fields = ", ".join(Job.model_fields)
            raise BadRequest(f"--vary {word!r}: no field {name!r}; choose entry or one of {fields}")
        items = [item.strip() for item in values.split(",")]
        found[name] = [_entry(item) for item in items] if name == "entry" else list(items)
    return found


def _entry(text: str) -> dict[str, Any]:
    engine, slash, rest = text.partition("/")
    strategy, colon, servers = rest.partition(":")
    if not slash or not strategy or (colon and not servers.isdigit()):
        raise BadRequest(f"--vary entry: {text!r} is not an entry; write engine/strategy or engine/strategy:servers")
    return {"engine": engine, "strategy": strategy, **({"servers": int(servers)} if colon else {})}


def expand(race: Race) -> list[Entry]:
    """Every job of a race, resolved; refuses with a list of all that cannot be."""
    entries, wrong = combinations(race)
    if wrong:
        raise BadRequest(refusal(wrong))
    return named(entries, race)


def refusal(wrong: list[str]) -> str:
    return "this race cannot run:\n  " + "\n  ".join(dict.fromkeys(wrong))


def combinations(race: Race) -> tuple[list[Entry], list[str]]:
    """Every job of a race that can be, resolved and without a name yet, and a sentence for each that cannot."""
    entries: list[Entry] = []
    wrong: list[str] = []
    names = list(race.vary)
    for values in itertools.product(*race.vary.values()):
        fields = dict(race.job)
        for name, value in zip(names, values, strict=True):
            fields.update(value if name == "entry" and isinstance(value, dict) else {name: value})
        for repetition in range(1, race.repeat + 1):
            try:
                job = make_job(fields)
                job = resolve(job.model_copy(update={"seed": job.seed + repetition - 1}))
            except BadRequest as error:
                described = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
                wrong.append(f"{described or 'the base job'}: {error}")
                break
            entries.append(Entry("", job, repetition))
    return entries, wrong


def named(entries: list[Entry], race: Race) -> list[Entry]:
    return _published(entries, race) if race.naming == "published" else _plain(entries, race.prefix)


def several_of(tasks: Iterable[tuple[str, str]]) -> list[Prefix]:
    """Which of data set and model there are several of, in pairs of both."""
    both: tuple[Prefix, Prefix] = ("dataset", "model")
    return [name for name, values in zip(both, zip(*tasks, strict=True), strict=True) if len(set(values)) > 1]


def _plain(entries: list[Entry], prefix: Sequence[str] | None) -> list[Entry]:
    """Names of what differs, with data set and model if a race has several."""
    if prefix is None and entries:
        prefix = several_of((entry.job.dataset, entry.job.model) for entry in entries)
    found: list[Entry] = []
    seen: set[str] = set()
    for entry in entries:
        before = "".join(f"{re.sub(r'[^A-Za-z0-9.]+', '-', getattr(entry.job, name))}-" for name in prefix or ())
        name = (before[-60:] + _name(entry.job, entry.repetition)).lstrip("._-")
        plain, number = name, 1
        while name in seen:
            number += 1
            name = f"{plain}-again" if number == 2 else f"{plain}-again-{number - 1}"
        seen.add(name)
        found.append(replace(entry, name=name))
    return found


def _published(entries: list[Entry], race: Race) -> list[Entry]:
    from velodrome.spec.published import now, published_names

    names = published_names([entry.job for entry in entries], race.stamp or now(), race.machine, sizes=race.sizes)
    return [replace(entry, name=name) for entry, name in zip(entries, names, strict=True)]


def _name(job: Job, repetition: int) -> str:
    servers = f"-{job.servers}s" if job.servers else ""
    stock = "-stock" if job.implementation == "stock" else ""
    return f"{job.engine}-{job.strategy}{stock}-{job.workers}w{servers}-{job.batch_size}b-{repetition}"
