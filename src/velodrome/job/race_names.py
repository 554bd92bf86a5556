"""The jobs of a race with their names. Plain ones have engine, strategy, sizes and batch, and whatever else varies:
`tensorflow-parameter-server-2w-1s-128b-10e-sgd-1`. Which fields vary is recorded in `race.yaml`, so that a race keeps
its names when it is continued."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.names import LONGEST_NAME
from velodrome.job.published import now, published_names
from velodrome.job.race import Entry, Prefix, Race, combinations, refusal
from velodrome.job.script_arguments import fields_in
from velodrome.job.wording import in_words

#: Fields that every name has, or that the prefix is for.
_ALWAYS = frozenset({"dataset", "model", "engine", "strategy", "implementation", "workers", "servers", "batch_size"})
#: Short forms of fields that vary often; others are written as `field-value`.
_FORMS = {
    "epochs": "{}e", "steps": "{}steps", "threads": "{}t", "learning_rate": "lr{}", "optimizer": "{}", "dtype": "{}",
    "batch_scope": "{}", "script_args": "{}", "seed": "seed{}", "unroll": "unroll{}",
}
#: Characters of data set and model, and of the fields that vary.
_LONGEST_PREFIX, _LONGEST_FIELDS = 60, 40


def expand(race: Race) -> list[Entry]:
    """Every job of a race, resolved and named; refuses with a list of all that cannot be."""
    found = combinations(race)
    if found.wrong:
        raise BadRequest(refusal(found.wrong))
    return named(found.entries, race)


def named(entries: Sequence[Entry], race: Race) -> list[Entry]:
    """The entries with their names, no two the same."""
    if race.naming == "plain":
        return plain_names(entries, race.prefix, race.named_by or ())
    names = published_names([entry.job for entry in entries], race.stamp or now(), race.machine, sizes=race.sizes)
    return [replace(entry, name=name) for entry, name in zip(entries, names, strict=True)]


def several_of(tasks: Iterable[tuple[str, str]]) -> list[Prefix]:
    """Which of data set and model there are several of, in pairs of both."""
    both: tuple[Prefix, Prefix] = ("dataset", "model")
    return [name for name, values in zip(both, zip(*tasks, strict=True), strict=True) if len(set(values)) > 1]


def varied_fields(race: Race) -> list[str]:
    """The fields that a race varies for the same data set and model, in its order, without those of every name."""
    asked: dict[str, None] = {}
    for name, values in race.vary.items():
        asked.update(dict.fromkeys(key for value in values for key in value) if name == "entry" else {name: None})
    found = []
    # A baseline that was added changes no name.
    entries = combinations(race.model_copy(update={"baseline": None, "repeat": 1})).entries
    for name in asked:
        if name in Job.model_fields and name not in _ALWAYS:
            words = {(entry.job.dataset, entry.job.model, _word(entry, name)) for entry in entries}
            found += [name] if len(words) > len({word[:2] for word in words}) else []
    return found


def plain_names(entries: Sequence[Entry], prefix: Sequence[str] | None, fields: Sequence[str]) -> list[Entry]:
    """The entries with names of what differs; data set and model come first if a race has several."""
    if prefix is None and entries:
        prefix = several_of((entry.job.dataset, entry.job.model) for entry in entries)
    found: list[Entry] = []
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    for entry in entries:
        own = _own_name(entry, fields)
        before = "".join(f"{_plain(getattr(entry.job, name))}-" for name in prefix or ())
        name = (before[-max(1, min(_LONGEST_PREFIX, LONGEST_NAME - len(own))) :] + own).lstrip("._-")
        plain = name
        while name in seen:
            numbers[plain] = number = numbers.get(plain, 1) + 1
            name = f"{plain}-again" if number == 2 else f"{plain}-again-{number - 1}"
        seen.add(name)
        found.append(replace(entry, name=name))
    return found


def _own_name(entry: Entry, fields: Sequence[str]) -> str:
    job = entry.job
    servers = f"-{job.servers}s" if job.servers else ""
    stock = "-stock" if job.implementation == "stock" else ""
    words = "".join(f"-{word}" for name in fields if (word := _word(entry, name)))
    if len(words) > _LONGEST_FIELDS:
        words = f"{words[: _LONGEST_FIELDS - 7]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"
    has_batch = job.script is None or "batch_size" in fields_in(job.script_args)
    batch = f"-{job.batch_size}b" if has_batch else ""
    return f"{job.engine}-{job.strategy}{stock}-{job.workers}w{servers}{batch}{words}-{entry.repetition}"


def _word(entry: Entry, name: str) -> str:
    """A field of a job as part of its name; nothing for one that is not set."""
    value: Any = getattr(entry.job, name, None)
    if name == "seed":
        value -= entry.repetition - 1
    if value is None or value == {}:
        return ""
    if isinstance(value, Mapping):
        return "-".join(_plain(f"{key}-{in_words(item)}") for key, item in value.items())
    label = name.replace("_", "-")
    if isinstance(value, bool):
        return label if value else f"no-{label}"
    short = isinstance(value, float) and float(f"{value:g}") == value
    return _plain(_FORMS.get(name, f"{label}-{{}}").format(f"{value:g}" if short else value)).strip("-")


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)
