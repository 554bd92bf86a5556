"""Engines, launchers and the like by name: ours, and those that other packages register as entry points.

Ours are entries of the same form. An entry that cannot be loaded is refused where it is named, and left out of lists.
A new engine of ours is a file in `catalog/engines`, a folder in `engines/`, and a name in `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from velodrome.catalog.base import OF_SCRIPT, Engine, Strategy
from velodrome.catalog.exchange import Consistency
from velodrome.catalog.models import TASK_OPTIONS
from velodrome.catalog.options import Option
from velodrome.errors import BadRequest, similar_names, which_name


@dataclass(frozen=True)
class Plugins:
    """What can be chosen by name."""

    #: The group of entry points, such as `velodrome.launchers`.
    group: str
    #: What sentences call one of them.
    title: str
    #: What an entry must be.
    kind: type | tuple[type, ...]
    #: Our own: module and attribute by name.
    ours: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.group)

    def names(self) -> list[str]:
        """All names, ours first; nothing is imported for it."""
        return [*self.ours, *(name for name in sorted(_registered(self.group)) if name not in self.ours)]

    def get(self, name: str) -> Any:
        """What has that name, None if nothing has; `BadRequest` if it cannot be loaded."""
        if name in self.ours:
            return load(self.ours[name])
        entry = _registered(self.group).get(name)
        return None if entry is None else _loaded(self, entry)

    def usable(self) -> list[str]:
        """The names of all that can be loaded."""
        broken = self.broken()
        return [name for name in self.names() if name not in broken]

    def all(self) -> list[Any]:
        """All that can be loaded."""
        return [self.get(name) for name in self.usable()]

    @cache  # noqa: B019  # there is one for each group
    def broken(self) -> dict[str, str]:
        """Why those of other packages that cannot be loaded cannot, by name."""
        reasons = {}
        for name in self.names()[len(self.ours) :]:
            try:
                self.get(name)
            except BadRequest as error:
                reasons[name] = str(error)
        return reasons


def load(value: str) -> Any:
    """The object that `module:attribute` names."""
    return EntryPoint("", value, "").load()


@cache
def _registered(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def _loaded(plugins: Plugins, entry: EntryPoint) -> Any:
    whose = f"{plugins.title} {entry.name!r} of package {entry.dist.name!r}" if entry.dist else entry.name
    try:
        loaded = entry.load()
    except Exception as error:
        raise BadRequest(f"{whose} cannot be loaded: {type(error).__name__}: {error}; update or remove the package") \
            from error
    if not isinstance(loaded, plugins.kind):
        raise BadRequest(f"{whose} cannot be used: {entry.value!r} is a {type(loaded).__name__}; see its documentation "
                         "for the version of Velodrome that it needs")
    return loaded


#: Each an `Engine`, or several: one for each framework that it trains with, the default first.
ENGINES = Plugins(
    "velodrome.engines", "engine", (Engine, tuple), {
        "tensorflow": "velodrome.catalog.engines.tensorflow:ENGINE",
        "torch": "velodrome.catalog.engines.torch:ENGINE",
        "jax": "velodrome.catalog.engines.jax:ENGINE",
        "accelerate": "velodrome.catalog.engines.torch:ACCELERATE",
        "fabric": "velodrome.catalog.engines.torch:FABRIC",
        "deepspeed": "velodrome.catalog.engines.torch:DEEPSPEED",
        "mxnet": "velodrome.catalog.engines.mxnet:ENGINE",
        "horovod": "velodrome.catalog.engines.horovod:ENGINE",
    },
)
#: The strategy of one process.
SINGLE = "single"
#: The engine of a job that names none, where it is installed.
DEFAULT_ENGINE = "torch"
#: The command that lists engines and strategies.
LISTED_BY = "velodrome engines"


class Choice(Protocol):
    """Whatever names an engine and one of its strategies: a job."""

    @property
    def engine(self) -> str: ...

    @property
    def framework(self) -> str | None: ...

    @property
    def strategy(self) -> str: ...

    @property
    def consistency(self) -> str | None: ...


@cache
def forms(name: str) -> tuple[Engine, ...]:
    """An engine with each of the frameworks that it trains with, the default first; most have one form."""
    known: Engine | tuple[Engine, ...] | None = ENGINES.get(name)
    if known is None:
        raise BadRequest(f"no engine {name!r}: {which_name(name, ENGINES.names(), LISTED_BY)}")
    return known if isinstance(known, tuple) else (known,)


def engine(name: str, framework: str | None = None) -> Engine:
    """An engine by its name, with one of its frameworks if it has several."""
    choices = forms(name)
    if framework is None:
        return choices[0]
    for form in choices:
        if form.framework == framework:
            return form
    known = [form.framework for form in choices if form.framework is not None]
    how_to_fix = f"choose {' or '.join(known)}" if known else "it trains with one framework only; leave --framework out"
    raise BadRequest(f"--framework {framework!r}: engine {name} has no such framework: {how_to_fix}")


def engine_with_key(key: str) -> Engine:
    """The engine whose `Engine.key` this is."""
    return next((form for form in all_forms() if form.key == key), None) or engine(key)


def engines() -> list[Engine]:
    """Every engine once, with its default framework."""
    return [engine(name) for name in ENGINES.usable()]


def engines_with(strategy: str, *, raced: bool = False) -> list[str]:
    """The names of the engines that have a strategy of this name, or only of those that race it by default."""
    return [known.name for known in engines()
            if any(each.name == strategy and not (raced and each.not_raced) for each in known.strategies)]


def all_forms() -> list[Engine]:
    """Every engine with every framework that it trains with."""
    return [form for name in ENGINES.usable() for form in forms(name)]


def engine_alone(name: str) -> str | None:
    """The engine whose `single` trains in one process what this one distributes: itself, or the one that it extends."""
    described = engine(name)
    if any(strategy.name == SINGLE for strategy in described.strategies):
        return name
    return engine_alone(described.tasks_of) if described.tasks_of else None


def engine_of(job: Choice) -> Engine:
    return engine(job.engine, job.framework)


def check_arrays(engine: Engine, dataset: str) -> None:
    """Refuse a data set of arrays for an engine that does not train on them."""
    if "arrays" not in engine.takes:
        having = [other.name for other in engines() if "arrays" in other.takes]
        raise BadRequest(f"--dataset {dataset!r} is arrays of numbers, but {engine.title} trains on "
                         f"{' and '.join(engine.takes)}; choose --engine {' or '.join(having)} for it")


def strategy_of(job: Choice) -> Strategy:
    described = engine_of(job)
    if job.strategy == OF_SCRIPT.name:
        return OF_SCRIPT
    for strategy in described.strategies:
        if strategy.name == job.strategy:
            return _with_consistency(described, strategy, job.consistency)
    elsewhere = engines_with(job.strategy)
    known = [strategy.name for strategy in described.strategies]
    hint = which_name(job.strategy, known, LISTED_BY)
    if elsewhere:
        hint = f"choose one of {', '.join(known)} ({job.strategy} is of engine {' and '.join(elsewhere)})"
    elif not similar_names(job.strategy, known):
        having = {strategy.name: other.name for other in reversed(engines()) for strategy in other.strategies}
        if near := similar_names(job.strategy, having):
            hint = f"did you mean --engine {having[near[0]]} --strategy {near[0]}? `{LISTED_BY}` lists all"
        elif other := similar_names(job.strategy, ENGINES.names()):
            hint = f"did you mean --engine {other[0]}? `{LISTED_BY}` lists all"
    raise BadRequest(f"engine {described.name} has no strategy {job.strategy!r}: {hint}")


def known_strategy(engine_name: str, name: str) -> Strategy | None:
    """A strategy by the names of its engine and its own; None where this version knows none."""
    strategies = engine(engine_name).strategies if engine_name in ENGINES.usable() else ()
    return next((strategy for strategy in strategies if strategy.name == name), None)


def _with_consistency(engine: Engine, strategy: Strategy, text: str | None) -> Strategy:
    """A strategy under the consistency model that a job asks for, or `BadRequest` if it has no such one."""
    if text is None:
        return strategy
    chosen = strategy.with_consistency(Consistency.parse(text))
    if chosen is None:
        has = " or ".join(map(str, strategy.consistencies)) or f"{strategy.consistency} only"
        raise BadRequest(f"--consistency {text}: strategy {engine.name}/{strategy.name} has {has}")
    return chosen


@cache
def consistencies() -> tuple[str, ...]:
    """The consistency models that `--consistency` may choose from, of all strategies."""
    return tuple(dict.fromkeys(
        str(model) for form in all_forms() for strategy in form.strategies for model in strategy.consistencies
    ))


@cache
def frameworks() -> tuple[str, ...]:
    """The frameworks that `--framework` may choose from, of all engines."""
    return tuple(dict.fromkeys(form.framework for form in all_forms() if form.framework is not None))


def options_of(engine: Engine, strategy: Strategy | None) -> dict[Option[Any], Any]:
    """The options of jobs with a strategy, with their defaults."""
    return {**engine.options, **(strategy.options if strategy else {})}


@cache
def options() -> dict[str, Option[Any]]:
    """The options that engines, strategies and tasks declare, by name."""
    declared = {option.name: option for option in TASK_OPTIONS}
    for form in all_forms():
        for option in (option for strategy in form.strategies for option in options_of(form, strategy)):
            if declared.setdefault(option.name, option) is not option:
                raise BadRequest(f"engine {form.name} has an option {option.name!r}, and so has another engine: update "
                                 "or remove its package")
    return declared


@cache
def users_of(option: Option[Any]) -> tuple[str, ...]:
    """The strategies that an option is for; none for an option of a task."""
    return tuple(
        f"{engine.name}/{strategy.name}" for engine in engines() for strategy in engine.strategies
        if option in options_of(engine, strategy)
    )
