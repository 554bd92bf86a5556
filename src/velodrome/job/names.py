"""Names of runs: what a name may be, and how the runs of a race are named."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from velodrome.catalog.registry import engines
from velodrome.data import catalogue
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job, job_fields
from velodrome.job.race import Entry, Prefix, Race, combinations, refusal
from velodrome.job.resolve import roles_of
from velodrome.job.script import fields_in
from velodrome.job.values import in_words

LONGEST_NAME = 120
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def check_name(name: str) -> str:
    """Refuse a name that is not one plain folder, or that other programs and systems might not take."""
    if not _NAME.fullmatch(name):
        others = ", ".join(map(repr, [*dict.fromkeys(re.findall(r"[^A-Za-z0-9._-]", name))][:5]))
        raise BadRequest(
            f"--name {name!r}: a name has the letters A to Z and a to z, digits, '.', '_' and '-'"
            + (f", and not {others}" if others else "")
            + f"; it begins with a letter or digit and has at most {LONGEST_NAME} characters"
        )
    return name


def default_name(job: Job) -> str:
    """The default name of a run: engine, strategy, processes, data, model, time."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", job.model)
    stock = ["stock"] if job.implementation == "stock" else []
    parts = [job.engine, *([job.framework] if job.framework else []), job.strategy, *stock, f"{job.workers}w"]
    parts += [job.dataset, model, f"{job.batch_size}b"] if job.script is None else [model]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).lstrip("._-")
    return f"{name[:90]}-{time.strftime('%y%m%d-%H%M%S')}"


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
    expanded = combinations(race)
    if expanded.wrong:
        raise BadRequest(refusal(expanded.wrong))
    return named(expanded.entries, race)


def named(entries: Sequence[Entry], race: Race) -> list[Entry]:
    """The entries with their names, no two the same."""
    if race.naming == "plain":
        return plain_names(entries, race.prefix, race.named_by or ())
    names = published_names(
        [entry.job for entry in entries], race.stamp or now(), race.machine, sizes=race.sizes,
        test_group=race.test_group or 0,
    )
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
    fields = []
    # A baseline that was added changes no name.
    entries = combinations(race.model_copy(update={"baseline": None, "repeat": 1})).entries
    for name in asked:
        if name in job_fields() and name not in _ALWAYS:
            words = {(entry.job.dataset, entry.job.model, _word(entry, name)) for entry in entries}
            fields += [name] if len(words) > len({word[:2] for word in words}) else []
    return fields


def plain_names(entries: Sequence[Entry], prefix: Sequence[str] | None, fields: Sequence[str]) -> list[Entry]:
    """The entries with names of what differs; data set and model come first if a race has several."""
    if prefix is None and entries:
        prefix = several_of((entry.job.dataset, entry.job.model) for entry in entries)
    renamed: list[Entry] = []
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
        renamed.append(replace(entry, name=name))
    return renamed


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


#: Engine and strategy by the letters that begin a name. `MWM` is as published; strategies of later engines that are
#: not here get letters made from their names, see `abbreviations`.
_CHOSEN: dict[tuple[str, str], str] = {
    ("tensorflow", "single"): "SGL",
    ("tensorflow", "mirrored"): "MIR",
    ("tensorflow", "multi-worker-mirrored"): "MWM",
    ("tensorflow", "parameter-server"): "PSS",
    ("tensorflow", "central-storage"): "CSS",
    ("tensorflow", "allreduce"): "TFA",
    ("tensorflow", "tpu"): "TPU",
    ("torch", "single"): "PTS",
    ("torch", "ddp"): "DDP",
    ("torch", "allreduce"): "PTA",
}
#: Labels that the published names shorten.
_LABELS = {"articleType": "artType", "fashion-products": "artType"}
#: Characters of a label: with all else that a name has, a file system still takes it.
_LONGEST_LABEL = 75
_PUBLISHED = re.compile(
    r"(?P<letters>[A-Z]+)(?P<group>[0-9]{3,})-(?P<size>[0-9]+)d-(?P<label>[A-Za-z0-9]+)-(?P<instances>[0-9]+)i-"
    r"(?P<batch>[0-9]+)b-(?P<instance_type>[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*)-(?P<epochs>[0-9]+)e-"
    r"(?P<stamp>[0-9]{6}-[0-9]{6})"
)


#: Numbers of a test group, as in `MWM201`: run 1 of group 2.
_GROUP = 100


@cache
def abbreviations() -> dict[tuple[str, str], str]:
    """Letters for every strategy of every engine, each once."""
    letters_of: dict[tuple[str, str], str] = {}
    taken = set(_CHOSEN.values())
    for engine in engines():
        for strategy in engine.strategies:
            key = (engine.name, strategy.name)
            if key not in _CHOSEN:
                letters = (engine.name[:2] + "".join(word[0] for word in strategy.name.split("-"))).upper()
                while letters in taken:
                    letters += "X"
                taken.add(letters)
                letters_of[key] = letters
            else:
                letters_of[key] = _CHOSEN[key]
    return letters_of


@dataclass(frozen=True)
class PublishedName:
    """The parts of a published name."""

    engine: str
    strategy: str
    #: The test group times 100, and the number within the group, which distinguishes runs whose names would be the
    #: same; repetitions count it up.
    group: int
    #: Examples of the training set; 0 if they are not known before it is loaded.
    size: int
    label: str
    instances: int
    batch_size: int
    instance_type: str
    epochs: int
    #: Start, as `%y%m%d-%H%M%S`.
    stamp: str

    def __str__(self) -> str:
        letters = abbreviations().get((self.engine, self.strategy))
        if letters is None:
            raise BadRequest(f"no engine has {self.engine}/{self.strategy}: `velodrome engines` shows what there is")
        return (
            f"{letters}{self.group:03d}-{self.size}d-{self.label}-{self.instances}i-{self.batch_size}b-"
            f"{self.instance_type}-{self.epochs}e-{self.stamp}"
        )


def parse(name: str) -> PublishedName:
    """The parts of a name, or `BadRequest` if it does not follow the scheme."""
    match = _PUBLISHED.fullmatch(name)
    strategies = {letters: key for key, letters in abbreviations().items()}
    if match is None or match["letters"] not in strategies:
        raise BadRequest(
            f"{name!r} does not follow the published scheme: expected a name such as "
            "'MWM001-33000d-artType-2i-128b-m5-4xlarge-10e-230713-102652'"
        )
    engine, strategy = strategies[match["letters"]]
    return PublishedName(
        engine, strategy, int(match["group"]), int(match["size"]), match["label"], int(match["instances"]),
        int(match["batch"]), match["instance_type"], int(match["epochs"]), match["stamp"],
    )


def now() -> str:
    """The time stamp of a race that starts now."""
    return time.strftime("%y%m%d-%H%M%S")


def local_type() -> str:
    """This machine as an instance type: `local-2c` with two cores."""
    return f"local-{os.cpu_count() or 1}c"


def label_of(dataset: str) -> str:
    """The label that is learned: the variant of a data set or its name, in letters and digits only."""
    before, colon, rest = dataset.partition(":")
    last = rest.rstrip("/").rpartition("/")[2] if colon and before in catalogue.schemes() else rest
    word = _LABELS.get(last or before, last or before)
    parts: list[str] = re.findall(r"[A-Za-z0-9]+", word) or ["data"]
    head, *tail = parts
    return (head + "".join(part[0].upper() + part[1:] for part in tail))[:_LONGEST_LABEL]


def _size(job: Job) -> int:
    """Training examples, or words of a text; 0 if that is not known yet."""
    try:
        about = catalogue.describe(job.dataset, validation=job.validation, bad_data=job.bad_data)
        if about.train is None and about.counted_when_prepared:
            # The first job would prepare it next.
            catalogue.prepare(job.dataset, bad_data=job.bad_data)
            about = catalogue.describe(job.dataset, validation=job.validation, bad_data=job.bad_data)
        return about.train or 0
    except VelodromeError:
        return 0


def _part(job: Job) -> str:
    """What the size of a training set depends on."""
    return f"{job.dataset}, validation {job.validation:g}, bad data {job.bad_data}"


def sizes_of(jobs: Iterable[Job], known: Mapping[str, int]) -> dict[str, int]:
    """The data size of each job's training set; one that is known stays, whatever the data looks like now."""
    sizes: dict[str, int] = {}
    for job in jobs:
        part = _part(job)
        if part not in sizes:
            sizes[part] = known[part] if part in known else _size(job)
    return sizes


def stamped(race: Race, written: Race | None) -> Race:
    """A race with the time stamp, the data sizes and the machine of its names.

    They are those of its first start, if it was started before: since then the data may have got another size and the
    machine other cores, and finished runs must be found again.
    """
    if race.naming != "published":
        return race
    # Names are what this is for, so the jobs have none yet; invalid ones are reported when they are checked.
    jobs = [entry.job for entry in combinations(race).entries]
    return race.model_copy(update={
        "stamp": race.stamp or (written and written.stamp) or now(),
        "sizes": sizes_of(jobs, {**(written.sizes if written else {}), **race.sizes}),
        "machine": race.machine or (written.machine if written else local_type()),
    })


def published_names(
    jobs: Sequence[Job], stamp: str, instance_type: str | None = None, *, sizes: Mapping[str, int] | None = None,
    test_group: int = 0,
) -> list[str]:
    """A name for each resolved job, no two the same; `sizes` are those that the race has kept."""
    kind = instance_type or local_type()
    groups: dict[PublishedName, int] = {}
    sizes = sizes_of(jobs, sizes or {})
    names = []
    for job in jobs:
        name = PublishedName(
            job.engine, job.strategy, 0, sizes[_part(job)], label_of(job.dataset), len(roles_of(job)), job.batch_size,
            kind, job.epochs, stamp,
        )
        groups[name] = groups.get(name, 0) + 1
        if test_group and groups[name] >= _GROUP:
            raise BadRequest(f"test_group {test_group}: a group of published names has at most {_GROUP - 1} runs of "
                             "one configuration; repeat it less often, or leave the group out")
        names.append(str(PublishedName(**{**vars(name), "group": _GROUP * test_group + groups[name]})))
    return names
