"""The form of a new race: its fields, generated from the same models as the options of the command, and the command
that they stand for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from velodrome.catalog.models import MODELS, is_own, zoo_model
from velodrome.catalog.registry import ENGINES, engine, engines
from velodrome.clusters import target_of
from velodrome.data import catalogue
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job, choices_of, job_fields, job_groups, reason_of
from velodrome.job.names import check_name, expand
from velodrome.job.race import OPTIONS, Race, combinations, parse_vary
from velodrome.judge.criteria import OBJECTIVES
from velodrome.races.request import default_name, merge
from velodrome.run.trust import elsewhere
from velodrome.tasks.registry import task

#: Fields of a race that a person sets on the page.
OF_RACE = tuple(name for name in OPTIONS if name != "naming")
#: Shown at once; all others are folded.
COMMON = ("dataset", "model", "engine", "workers", "batch_size", "epochs", "learning_rate", "target")
_MOST_TEXT = 2000
#: What a command line can hold: no zeros and no halves of surrogates.
_PARALLEL = re.compile(r"auto|[1-9][0-9]{0,2}")
_PASSED = re.compile("[^\0\ud800-\udfff]*")
_OPTION = re.compile(r"--([a-z][a-z-]*)")
Kind = Literal["text", "number", "choice", "flag", "lines"]


@dataclass(frozen=True)
class FormField:
    """One field of the form."""

    name: str
    label: str
    help: str
    kind: Kind
    default: str = ""
    choices: tuple[str, ...] = ()
    #: What may be typed, besides anything else.
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    name: str
    fields: tuple[FormField, ...]


@dataclass(frozen=True)
class Checked:
    """A form that was filled in: the command that it stands for, or what is wrong with which field."""

    words: tuple[str, ...]
    errors: Mapping[str, str]
    name: str | None = None
    jobs: int | None = None

    @property
    def command(self) -> str:
        return shlex.join(["velodrome", *self.words])

    def as_json(self) -> dict[str, Any]:
        return {"command": self.command, "errors": dict(self.errors), "name": self.name, "jobs": self.jobs}


@cache
def groups() -> list[Group]:
    """Every field of a race and of its jobs, by topic."""
    own = [
        FormField("name", "Name", "Name of the race; by default one that follows from what is raced.", "text"),
        FormField("vary", "Vary", "What is raced: a field and its values in each line, as workers=1,2 or "
                  "strategy=single,ddp or entry=tensorflow/parameter-server:1,torch/ddp. With nothing to vary, every "
                  "strategy that can train the model takes part.", "lines"),
        *(_field(name, Race.model_fields[name]) for name in OF_RACE),
        FormField("skip_unavailable", "Skip what is not available", "Leave out jobs for which this machine lacks a "
                  "package, a device or memory, instead of refusing the race.", "flag"),
    ]
    where = Group("Where it runs", (
        FormField("on", "On", "local (this machine), emulated:nodes=4,bandwidth=1gbit (several hosts on this machine), "
                  "ssh:HOST,HOST, or a cluster of clusters.yaml (`velodrome clusters list`).", "text", "local"),
        FormField("parallel", "Parallel", "Jobs that run at the same time, each on hosts of its own: auto for as many "
                  "as the cluster has room for, which is one on one machine; or a number.", "text", "auto"),
        FormField("place", "Place", "Host of a role, or of one process: a line such as server=HOST or worker:1=HOST "
                  "for each.", "lines"),
    ))
    first = Group("Race", tuple(field for field in own if field.name in ("name", "vary", "repeat")))
    limits = Group("How it ends and is judged", tuple(field for field in own if field not in first.fields))
    common = Group("Job", tuple(_field(name, job_fields()[name]) for name in COMMON))
    rest = [
        Group(group, tuple(_field(name, job_fields()[name]) for name in names if name not in COMMON))
        for group, names in job_groups().items()
    ]
    return [first, common, limits, where, *(group for group in rest if group.fields)]


def _plain(annotation: Any) -> Any:
    """A type without None and limits."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(option for option in get_args(annotation) if option is not NoneType))
    return annotation


def _field(name: str, field: FieldInfo) -> FormField:
    kind, about = _plain(field.annotation), field.description or name
    default = field.get_default(call_default_factory=True)
    label = name.replace("_", " ")
    common: dict[str, Any] = {
        "label": label[0].upper() + label[1:], "help": about[0].upper() + about[1:] + ".",
        "default": "" if default is None or default in ([], {}) else str(default),
    }
    if kind is bool:
        return FormField(name, kind="flag", **common)
    if choices := choices_of(name, field):
        return FormField(name, kind="choice", choices=choices, **common)
    if name in ("model_args", "read"):
        return FormField(name, kind="lines", **common)
    suggestions: tuple[str, ...] = {
        "dataset": tuple(catalogue.names()), "model": tuple(model.name for model in MODELS),
        "engine": tuple(ENGINES.usable()),
        "strategy": tuple(dict.fromkeys(strategy.name for engine in engines() for strategy in engine.strategies)),
        "objective": tuple(OBJECTIVES),
    }.get(name, ())
    return FormField(name, kind="number" if kind in (int, float) else "text", suggestions=suggestions, **common)


def check(given: Mapping[str, Any], runs: Path) -> Checked:
    """The command that a form stands for, checked as far as that is possible at once."""
    known = {field.name: field for group in groups() for field in group.fields}
    errors: dict[str, str] = {}
    texts: dict[str, str] = {}
    for name, value in given.items():
        if name not in known:
            errors[""] = f"There is no field {str(name)[:60]!r}."
        elif not isinstance(value, str) or len(value) > _MOST_TEXT or not _PASSED.fullmatch(value):
            errors[name] = f"Give a text of at most {_MOST_TEXT} characters."
        elif value.strip():
            texts[name] = value.strip()
    words = ["race", *_words(texts, known), f"--runs={runs}"]
    race, jobs = _examine(texts, known, errors)
    return Checked(tuple(words), errors, race, jobs)


def _words(texts: Mapping[str, str], known: Mapping[str, FormField]) -> list[str]:
    """The options, each with its value in the same word, so that no value can become an option."""
    words = []
    for name, text in texts.items():
        option = {"model_args": "--model-arg"}.get(name, f"--{name.replace('_', '-')}")
        if known[name].kind == "flag":
            if text == "true":
                words.append(option)
            elif text == "false" and name != "skip_unavailable":
                words.append(f"--no-{name.replace('_', '-')}")
        elif known[name].kind == "lines":
            words += [f"{option}={line.strip()}" for line in text.splitlines() if line.strip()]
        else:
            words.append(f"{option}={text}")
    return words


def _examine(
    texts: Mapping[str, str], known: Mapping[str, FormField], errors: dict[str, str]
) -> tuple[str | None, int | None]:
    """Put what is wrong into `errors`; the race's name and how many jobs it has, if nothing is."""
    job: dict[str, Any] = {}
    race: dict[str, Any] = {}
    for name, text in texts.items():
        if name in OF_RACE:
            race[name] = text == "true" if known[name].kind == "flag" else text
        elif name in job_fields() and name != "model_args":
            lines = known[name].kind == "lines"
            job[name] = text.splitlines() if lines else text == "true" if known[name].kind == "flag" else text
    if not _PARALLEL.fullmatch(texts.get("parallel", "auto")):
        errors["parallel"] = "Give auto, or a number of jobs from 1 to 999."
    models: tuple[tuple[type[BaseModel], dict[str, Any]], ...] = ((Job, job), (Race, race))
    for model, fields in models:
        for name, value in fields.items():
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                errors[name] = _reason(error, value)
    vary: dict[str, list[Any]] = {}
    try:
        vary = parse_vary([line.strip() for line in texts.get("vary", "").splitlines() if line.strip()])
    except BadRequest as error:
        errors["vary"] = _sentence(error)
    for name, look_up in _NAMED.items():
        if name in texts and name not in errors:
            try:
                look_up(texts[name])
            except VelodromeError as error:
                errors[name] = _sentence(error)
    if "engine" in errors:  # what else is wrong depends on it
        return None, None
    # Fields that are wrong are left out, so that what is wrong with the others is shown at the same time.
    right = {name: value for name, value in job.items() if name not in errors}
    try:
        asked = merge(None, right, vary, {name: value for name, value in race.items() if name not in errors})
        for code in elsewhere(entry.job for entry in combinations(asked.model_copy(update={"repeat": 1})).entries):
            errors[code.field] = (f"{_upper(str(code))[:-1]} is not in the folder that this page was started in, and "
                                  "a page runs no other code: start the race in a terminal.")
        name_and_count = texts.get("name") or default_name(None, asked), len(expand(asked)) if vary else None
        return name_and_count if not errors else (None, None)
    except (VelodromeError, ValueError) as error:
        errors.update({name: text for name, text in errors_of(str(error), known).items() if name not in errors})
    return None, None


#: How the fields that hold a name are looked up, without loading anything.
_NAMED: dict[str, Callable[[str], object]] = {
    "name": check_name, "dataset": catalogue.data_set, "model": lambda name: is_own(name) or zoo_model(name),
    "engine": engine, "task": task, "on": target_of,
}


def _reason(error: ValidationError, value: Any) -> str:
    reason = reason_of(error.errors()[0])
    return _upper(reason if repr(value) in reason else f"{value!r}: {reason}")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _sentence(error: VelodromeError) -> str:
    return _upper(re.sub(r"^--[a-z-]+ ", "", str(error)))


def errors_of(message: str, known: Mapping[str, FormField] | None = None) -> dict[str, str]:
    """The sentences of the command, each line at the field whose option it names first, or at none."""
    names = known if known is not None else {field.name: field for group in groups() for field in group.fields}
    head, *rest = message.splitlines() or [""]
    lines = [line.strip() for line in rest] if rest and head.endswith(":") else [message]
    sentences: dict[str, list[str]] = {}
    for line in lines:
        options = (option.removeprefix("no-").replace("-", "_") for option in _OPTION.findall(line))
        sentences.setdefault(next((name for name in options if name in names), ""), []).append(_upper(line))
    return {name: " ".join(texts) for name, texts in sentences.items()}
