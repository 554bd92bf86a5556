"""Options of a job on the command line, made from the job itself so that names, types and help are said once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from velodrome.errors import BadRequest
from velodrome.spec.job import Job

Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line, for scripts.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run; made from job and time unless said.")]
JobFile = Annotated[
    Path | None, typer.Argument(help="YAML file with the options' names as fields; options win.", metavar="FILE")
]

_FLAGS = {"keep_going": "--keep-going/--no-keep-going", "checkpoints": "--checkpoints/--no-checkpoints"}


def _plain_type(annotation: Any) -> Any:
    """The type a shell word is turned into, without None and without limits: the job checks those."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return str
    options = [option for option in get_args(annotation) if option is not type(None)]
    return _plain_type(options[0]) if options and get_origin(annotation) is not dict else annotation


def _number(kind: type) -> Callable[[str], Any]:
    """Turns a word into a number; its refusal quotes the word, which typer's own does not."""

    def parse(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            raise typer.BadParameter(f"{word!r} is no {'whole number' if kind is int else 'number'}") from None

    return parse


def _choices(name: str, annotation: Any) -> list[str]:
    """What the shell may offer for a field."""
    if name == "dataset":
        from velodrome.data import catalogue

        return list(catalogue.names())
    if name == "model":
        from velodrome.offers.models import MODELS

        return [model.name for model in MODELS]
    if name in ("engine", "strategy"):
        from velodrome.offers.registry import engines

        found = engines()
        return [e.name for e in found] if name == "engine" else sorted({s.name for e in found for s in e.strategies})
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Literal:
            return [str(choice) for choice in get_args(part)]
    return []


def _completion(name: str, annotation: Any) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in _choices(name, annotation) if choice.startswith(incomplete)]

    return complete


def _parameters() -> list[inspect.Parameter]:
    found = []
    for name, field in Job.model_fields.items():
        about = field.description or name
        about = about if about.startswith("sgd") else f"{about[0].upper()}{about[1:]}"
        more: dict[str, Any] = {}
        if name == "model_args":
            kind, flag = list[str], "--model-arg"
            about = "Argument of your own model's function, as key=value; repeat it for more"
        else:
            kind, flag = _plain_type(field.annotation), _FLAGS.get(name, f"--{name.replace('_', '-')}")
            if field.default is not None and "unless said" not in about:
                about += f" [default: {field.default}]"
            if kind in (int, float):
                more = {"parser": _number(kind), "metavar": f"<{kind.__name__}>"}
            elif kind is str:
                more = {"autocompletion": _completion(name, field.annotation)}
        annotation = Annotated[kind | None, typer.Option(flag, help=about, show_default=False, **more)]  # type: ignore[valid-type]
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return found


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose last parameter is `fields`, one option for every field of a job."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "fields"]

    def wrapped(**words: Any) -> None:
        mine = {parameter.name: words.pop(parameter.name) for parameter in own}
        command(**mine, fields={name: value for name, value in words.items() if value is not None})

    parameters = [*own, *_parameters()]
    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    return wrapped


def parse_model_args(words: list[str]) -> dict[str, Any]:
    """`key=value` words as arguments; values are read as YAML, so numbers and truth values are what they look like."""
    from velodrome.spec.read import parse_yaml

    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise BadRequest(f"--model-arg {word!r}: write it as key=value, for example width=64")
        try:
            found[key] = parse_yaml(value)
        except ValueError as error:
            raise BadRequest(f"--model-arg {word!r}: the value cannot be read: {error}") from None
    return found


def job_from(file: Path | None, fields: dict[str, Any]) -> Job:
    """The job of a YAML file with options on top."""
    from velodrome.spec.read import make_job, read_yaml

    base = read_yaml(file) if file is not None else {}
    if "model_args" in fields:
        fields = {**fields, "model_args": parse_model_args(fields["model_args"])}
    return make_job({**base, **fields})


def relative(path: str) -> Path:
    """A path as short as it can be typed from here: relative to the current folder if it is below."""
    here = Path.cwd()
    return Path(path).relative_to(here) if Path(path).is_relative_to(here) else Path(path)
