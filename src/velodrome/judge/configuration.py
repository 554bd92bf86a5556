"""A configuration: what runs of a race have in common that differ only in seed and repetition.

Names configurations by what distinguishes them, and finds the baseline of each.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from velodrome.job.job import Job, job_fields
from velodrome.job.resolve import strategy_fields
from velodrome.job.result import Result
from velodrome.job.script import FIELDS, differences, fields_in


def implementation_lines(result: Result) -> list[str]:
    """The form with its path, then the parts of each side: `velodrome over shared-memory`, `Velodrome: …`,
    `framework: …`; empty if the result reports none."""
    reported = result.implementation
    if reported is None:
        return []
    path = f" over {reported.path}" if reported.path else ""
    sides = {"Velodrome": reported.own, "framework": reported.framework}
    return [f"{reported.kind}{path}", *(f"{whose}: {', '.join(parts)}" for whose, parts in sides.items() if parts)]


#: Fields of a job that do not distinguish configurations: the repetition, time limits and checkpoints.
NOT_CONFIGURED = frozenset({"seed", "start_timeout", "stall_timeout", "checkpoints"})
#: Fields of a result that are used if its job is not available.
_RESULT_FIELDS = (
    "dataset", "model", "engine", "strategy", "consistency", "workers", "servers", "batch_size", "batch_scope",
    "optimizer", "learning_rate", "target", "script",
)
#: Fields that may differ between a configuration and its `single` baseline.
_OF_DISTRIBUTION = frozenset({
    "strategy", "consistency", "workers", "servers", "batch_scope", "keep_going", "sharding", "staleness_bound",
    *strategy_fields(),
})
#: Fields that may differ between a configuration and its one-worker baseline, the strictest first.
_OF_SIZE = (frozenset({"workers"}), frozenset({"workers", "batch_scope"}))
#: Model and data: only configurations that agree in these are compared.
TASK = ("dataset", "data", "model", "model_args", "task", "dtype")
#: Fields that every table and figure shows in a column or label of their own.
_SAID = frozenset({"engine", "strategy", "implementation", "workers", "servers", "consistency", "batch_size"})
#: Fields that follow from the strategy unless they are varied.
_OF_STRATEGY = frozenset({"batch_scope", "target", "framework", *strategy_fields()})
#: Fields that a script of the user's own decides itself, whatever its job says.
_OF_MODEL = frozenset(job_fields()) - FIELDS - {"dataset", "model", "servers"}
_SHORT = {"batch_size": "batch", "learning_rate": "rate", "batch_scope": "batch scope", "model_args": "arguments",
          "script_args": "arguments"}


#: Short forms of values, by field and text.
Short = Mapping[str, Mapping[str, str]]


def label_of(engine: str, strategy: str, implementation: str | None) -> str:
    """`torch/ddp`, or `torch/ddp (stock)` with the framework's own parts only."""
    return f"{engine}/{strategy}{' (stock)' if implementation == 'stock' else ''}"


@dataclass(frozen=True)
class Configuration:
    """The fields that runs share; equal configurations have equal keys."""

    key: str
    fields: Mapping[str, Any] = field(compare=False, repr=False)

    @classmethod
    def of(cls, result: Result) -> Configuration:
        """The configuration of a result; fields of its job are taken where the result carries one."""
        recorded = result.model_fields_set | {"target"}
        fields = {name: getattr(result, name) for name in _RESULT_FIELDS if name in recorded}
        # Results of versions that had only one implementation name none.
        fields["implementation"] = "velodrome" if result.implementation is None else result.implementation.kind
        return cls._of(fields, result.job_as_written or {}, result.data_version)

    @classmethod
    def of_job(cls, job: Job) -> Configuration:
        """The configuration of the runs of a job."""
        return cls._of({"implementation": "velodrome"}, job.model_dump())

    @classmethod
    def _of(cls, fields: dict[str, Any], job: Mapping[str, Any], data_version: str | None = None) -> Configuration:
        if job:
            # A job of an earlier version lacks fields that are newer: it ran with their defaults.
            fields = {**fields, **job, **{name: value for name, value in _defaults() if name not in {*fields, *job}}}
        if data_version:  # of data that changed during a race (`conditions.py`)
            fields["data"] = data_version
        is_script = fields.get("script") is not None
        unknown = _OF_MODEL - fields_in(str(fields.get("script_args") or "")) if is_script else frozenset[str]()
        fields = {name: value for name, value in fields.items() if name not in NOT_CONFIGURED | unknown}
        # The consistency follows from the strategy, and a run that has no result yet does not record it.
        followed = () if "consistency" in job else ("consistency",)
        return cls(_key({name: value for name, value in fields.items() if name not in followed}), fields)

    @property
    def label(self) -> str:
        return label_of(self.fields["engine"], self.fields["strategy"], self.fields.get("implementation"))

    @property
    def task(self) -> str:
        """Equal for configurations that train the same model on the same data."""
        return _key({name: self.fields.get(name) for name in TASK})

    def key_without(self, names: frozenset[str]) -> str:
        """Equal for configurations that agree in all fields but these."""
        return _key({name: value for name, value in self.fields.items() if name not in names})

    @property
    def size(self) -> str:
        """`2` workers, or `2 + 1 ps` with a parameter server."""
        servers = self.fields.get("servers")
        return f"{self.fields['workers']} + {servers} ps" if servers else str(self.fields["workers"])


@lru_cache(maxsize=1)
def _defaults() -> tuple[tuple[str, Any], ...]:
    return tuple(Job.model_validate({}).model_dump().items())


def _key(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, default=str)


def text_of(value: Any) -> str:
    """A field's value as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return "default" if value is None else str(value)


def varied(configurations: Iterable[Configuration]) -> dict[str, list[Any]]:
    """Fields that differ between configurations, with their values in order of appearance."""
    seen: dict[str, dict[str, Any]] = defaultdict(dict)
    for configuration in configurations:
        for name, value in configuration.fields.items():
            seen[name].setdefault(text_of(value), value)
    return {name: list(values.values()) for name, values in seen.items() if len(values) > 1}


def distinguishing_fields(configurations: Sequence[Configuration]) -> list[str]:
    """Fields besides strategy, size and batch that distinguish configurations."""
    within: set[str] = set()
    for members in _by_strategy(configurations).values():
        within.update(varied(members))
    return [
        name for name in varied(configurations) if name not in _SAID | _of_task(configurations)
        and (name not in _OF_STRATEGY or name in within)
    ]


def _of_task(configurations: Iterable[Configuration]) -> set[str]:
    """Fields that follow from model and data, such as the recipe of a network: each task has one value of them."""
    tasks: dict[str, list[Configuration]] = defaultdict(list)
    everything = list(configurations)
    for configuration in everything:
        tasks[configuration.task].append(configuration)
    within = {name for members in tasks.values() for name in varied(members)}
    return varied(everything).keys() - within - set(TASK) if len(tasks) > 1 else set()


def _by_strategy(configurations: Iterable[Configuration]) -> dict[str, list[Configuration]]:
    by_label: dict[str, list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        by_label[configuration.label].append(configuration)
    return by_label


def words_of(
    configuration: Configuration, names: Iterable[str], short: Short = MappingProxyType({})
) -> list[str]:
    """Fields of a configuration in words: `batch 64`, `rate 0.1`."""
    texts = {name: short_text(configuration, name, short) for name in names}
    return [f"{_SHORT.get(name, name.replace('_', ' '))} {text}" for name, text in texts.items()]


def short_text(configuration: Configuration, name: str, short: Short) -> str:
    """A field of a configuration as text, in its short form if it has one."""
    text = text_of(configuration.fields.get(name))
    return short.get(name, {}).get(text, text)


def short_forms(configurations: Iterable[Configuration]) -> Short:
    """Fields whose values are long, with a form of each that is enough to tell it from the others."""
    configurations = list(configurations)
    return {"dataset": short_data(configurations), **short_arguments(configurations)}


def short_arguments(configurations: Iterable[Configuration]) -> Short:
    """The arguments of scripts by what differs between them."""
    arguments = dict.fromkeys(str(each.fields.get("script_args") or "") for each in configurations)
    return {"script_args": {text: form or "none" for text, form in differences([*arguments]).items()}}


def short_data(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Data sets at an address by its last parts, as few as keep them different: `mnist` for `shards:hdfs://host/mnist`."""
    parts = {name: name.split("/") for name in (text_of(each.fields.get("dataset")) for each in configurations)}
    longest = max(map(len, parts.values()), default=1)
    for count in range(1, longest):
        short = {name: "/".join(part for part in words[-count:] if part) for name, words in parts.items()}
        if all(short.values()) and len(set(short.values())) == len(short):
            return short
    return {name: name for name in parts}


def names_of(configurations: Sequence[Configuration]) -> dict[str, str]:
    """A name for each key, as short as possible and unique within the race."""
    names = {}
    followed = _of_task(configurations)
    for label, members in _by_strategy(configurations).items():
        left_out = {"workers", "servers", "consistency", *followed}
        differing = [name for name in varied(members) if name not in left_out]
        short = short_arguments(members)
        for member in members:
            count = member.fields["workers"]
            parts = [f"{label} with {count} worker{'' if count == 1 else 's'}"]
            if servers := member.fields.get("servers"):
                parts[0] += f" and {servers} server{'' if servers == 1 else 's'}"
            names[member.key] = ", ".join([*parts, *words_of(member, differing, short)])
    return _numbered(names)


def _numbered(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, with numbers where two configurations differ in nothing that can be named."""
    seen: Counter[str] = Counter()
    unique = {}
    for key, name in names.items():
        seen[name] += 1
        unique[key] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return unique


class Baselines:
    """Finds the baseline of a configuration without searching the whole race each time."""

    def __init__(self, configurations: Iterable[Configuration]) -> None:
        self._single: dict[str, str] = {}
        self._alone: dict[str, str] = {}
        for configuration in configurations:
            if configuration.fields["workers"] != 1:
                continue
            if configuration.fields["strategy"] == "single":
                self._single.setdefault(configuration.key_without(_OF_DISTRIBUTION), configuration.key)
            for names in _OF_SIZE:
                self._alone.setdefault(configuration.key_without(names), configuration.key)

    def single(self, configuration: Configuration) -> str | None:
        """The same engine's `single` run with all else equal."""
        return self._single.get(configuration.key_without(_OF_DISTRIBUTION))

    def alone(self, configuration: Configuration) -> str | None:
        """The same strategy with one worker; with one worker both batch scopes are the same."""
        for names in _OF_SIZE:
            if (key := self._alone.get(configuration.key_without(names))) is not None:
                return key
        return None
