"""What the shell offers after TAB: values of options, and names of what is stored. Imports what it needs when asked."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import typer

from velodrome.catalog.registry import engines, load
from velodrome.cli.output import say
from velodrome.job.job import choices_of, job_fields
from velodrome.job.optimization import OPTIMIZERS

Values = Callable[[typer.Context], Iterable[str]]
Completion = Callable[[typer.Context, str], list[str]]
#: Where bash divides words.
_DIVIDERS = "=:"
#: Examples for fields whose values cannot be listed.
_EXAMPLES = {"workers": ("1,2", "1,2,4"), "servers": ("1", "1,2"), "batch_size": ("32,64", "32,64,128"),
             "epochs": ("1", "1,5"), "learning_rate": ("0.1", "0.1,0.01"), "warmup": ("500", "500,2epochs")}


def offer(values: Values) -> Completion:
    """Complete a word with those of some values that it begins."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return [value for value in values(ctx) if value.startswith(incomplete)]

    return complete


def one_of(*values: str) -> Completion:
    return offer(lambda ctx: values)


@contextmanager
def bash_words() -> Iterator[None]:
    """Let bash complete words with `=` and `:`: it divides them there, and completes what follows the last one."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    joined: list[str] = []
    for place, word in enumerate(words[: int(os.environ.get("COMP_CWORD") or 0) + 1]):
        if place and word and (word[0] in _DIVIDERS or words[place - 1][-1:] in tuple(_DIVIDERS)):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    known = max(joined[-1].rfind(divider) for divider in _DIVIDERS) + 1
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        for line in offered.getvalue().splitlines():
            say(line[known:])


def choices(name: str, engine: str | None = None) -> list[str]:
    """The values of a field of a job, as far as they can be listed; the strategies of one engine if it is given."""
    if name == "dataset":
        from velodrome.data import catalogue

        return list(catalogue.names())
    if name == "model":
        from velodrome.catalog.models import MODELS

        return [model.name for model in MODELS]
    if name in ("engine", "strategy"):
        if name == "engine":
            return [described.name for described in engines()]
        return sorted({
            strategy.name for described in engines() if engine in (None, described.name)
            for strategy in described.strategies
        })
    if name == "optimizer":
        return [*OPTIMIZERS]
    return ["true", "false"] if job_fields()[name].annotation is bool else [*choices_of(name, job_fields()[name])]


def field(name: str) -> Completion:
    """Complete the value of a job's field."""
    return offer(lambda ctx: choices(name, ctx.params.get("engine")))


def vary(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete `field=value,value`."""
    name, equals, values = incomplete.partition("=")
    field = name.replace("-", "_")
    if not equals:
        names = [known for known in ("entry", *job_fields()) if known.startswith(field) and known != "model_args"]
        # A shell ends a word that it completes; with several values to choose from it stops after the `=`.
        if len(names) != 1:
            return [f"{known}=" for known in names]
        field, name = names[0], names[0]
    if field != "entry" and field not in job_fields():
        return []
    before, comma, _ = values.rpartition(",")
    taken = set(before.split(",")) if comma else set()
    offered = _entries() if field == "entry" else choices(field, ctx.params.get("engine"))
    if not offered and not comma:
        offered = [*_EXAMPLES.get(field, ())]
    words = [f"{name}={before}{comma}{value}" for value in offered if value not in taken]
    return [word for word in words if word.startswith(f"{name}={values}")]


def _entries() -> list[str]:
    return [
        f"{engine.name}/{strategy.name}{':1' if strategy.has_servers else ''}"
        for engine in engines() for strategy in engine.strategies
    ]


def _runs_folder(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("runs") or "runs")


def stored(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a run or race, and `RACE/RUN` after the slash."""
    from velodrome.run.listing import scan

    race, slash, _ = incomplete.rpartition("/")
    held = scan(_runs_folder(ctx) / race) if slash else scan(_runs_folder(ctx))
    return [name for entry in held if (name := f"{race}{slash}{entry.name}").startswith(incomplete)]


def listed(value: str) -> Completion:
    """Complete with the names that `module:attribute` lists."""
    return offer(lambda ctx: load(value))


def _unfinished(ctx: typer.Context) -> list[str]:
    from velodrome.run.listing import scan
    from velodrome.run.store import RunFolder

    runs = [entry for entry in scan(_runs_folder(ctx)) if entry.kind == "run"]
    return [run.name for run in runs if RunFolder(run.path).status() != "finished"]


def _races(ctx: typer.Context) -> list[str]:
    from velodrome.run.listing import scan

    return [entry.name for entry in scan(_runs_folder(ctx)) if entry.kind == "race"]


def _launchers(ctx: typer.Context) -> list[str]:
    from velodrome.clusters import LAUNCHERS, clusters

    return [*LAUNCHERS.names(), *clusters()]


unfinished, races, launchers = offer(_unfinished), offer(_races), offer(_launchers)
studies = offer(lambda ctx: load("velodrome.studies.load:studies")())
statuses = listed("velodrome.run.listing:STATUSES")
objectives = listed("velodrome.judge.criteria:OBJECTIVES")
report_formats = listed("velodrome.reporting.write:FORMATS")
export_formats = listed("velodrome.run.listing:FORMS")
starters = listed("velodrome.api.examples:STARTERS")
