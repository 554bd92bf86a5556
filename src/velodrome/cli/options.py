"""Options of jobs and races on the command line, generated from the fields of `Job` and `Race`."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand
from typer.models import OptionInfo

from velodrome.cli import completion
from velodrome.cli.output import complain, say_on_stderr
from velodrome.errors import BadRequest
from velodrome.job.job import Job, flag, job_fields, job_groups
from velodrome.job.race import OPTIONS, Race

if TYPE_CHECKING:
    from velodrome.clusters import Target
    from velodrome.run.trust import Code

T = TypeVar("T")
#: The panel of `--help` for options that belong to no field of a job.
OUTPUT = "Output"


#: Where runs are stored by default.
DEFAULT_RUNS = Path("runs")
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line, for scripts.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run; by default made from the job and the time.")]
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="NAME", autocompletion=completion.launchers, show_default=False,
        rich_help_panel="Distribution",
        help="Where processes run: local (this machine), debug (one process inside this command, for breakpoints), "
        "emulated:nodes=4,bandwidth=1gbit (several hosts on this machine), ssh:HOST,HOST, ray:ADDRESS, "
        "slurm:partition=NAME, k8s:image=NAME, or a cluster of clusters.yaml (`velodrome clusters list`); by default "
        "where the job says, else local.",
    ),
]
Place = Annotated[
    list[str] | None,
    typer.Option(
        "--place", metavar="ROLE=HOST", rich_help_panel="Distribution", show_default=False,
        help="Host of a role (server=HOST) or of one process (worker:1=HOST); separate several hosts by commas. "
             "Repeat it for more.",
    ),
]
TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code", metavar="NAME", show_default=False,
        help="Allow code that only a file names: module:function, a script, or a cluster. Repeat it for more.",
    ),
]
_MIRROR: dict[str, Any] = {
    "metavar": "DIR|URL", "help": "Folder or URL with the publisher's files; by default $VELODROME_DATA_MIRROR.",
}
Mirror = Annotated[str | None, typer.Option("--mirror", **_MIRROR)]
JobMirror = Annotated[str | None, typer.Option("--mirror", rich_help_panel="Data", **_MIRROR)]
RaceArtifacts = Annotated[
    str | None,
    typer.Option("--artifacts", metavar="URL", help="Copy every finished run to URL/RACE/RUN when the race ends: "
                 "s3://bucket/path, hdfs://host:port/path or a folder. `velodrome serve URL/RACE/RUN` serves one."),
]
JobFile = Annotated[
    Path | None, typer.Argument(help="YAML file with options as fields; the command line wins.", metavar="FILE")
]

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A finished run, RACE/RUN, or the path of its folder.",
                   autocompletion=completion.stored),
]
StoredRun = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name of a run or race, or RACE/RUN.", autocompletion=completion.stored),
]

#: What an option differs in from what its field says.
_DIFFERENT: dict[str, dict[str, Any]] = {
    "model_args": {
        "flag": "--model-arg", "kind": list[str],
        "help": "Argument of your own model's function, key=value; repeat it for more",
    },
    "read": {
        "kind": list[str], "metavar": "PATTERN",
        "help": "Regular expression whose named groups are figures in what the script prints; repeat it for more",
    },
    "faults": {
        "flag": "--fault", "kind": list[str], "metavar": "FAULT",
        "help": "Fault to inject during training, such as 'partition node3 20s..30s', 'slow node2 4x from 10s', "
        "'pause worker0 5s..8s' or 'kill worker1 at 15s', in seconds since training began; repeat it for more",
    },
    "budget": {"kind": str, "metavar": "DURATION"},
    "tolerance": {"kind": str, "metavar": "SHARE"},
    "grace": {"metavar": "EPOCHS"},
}
#: Options that complete the names of something other than a field's choices.
_COMPLETED = {"objective": completion.objectives, "naming": completion.one_of("plain", "published")}
#: The panel of the options of a race.
RACE = "Race"


def _plain_type(annotation: Any) -> Any:
    """The type that a word of the command line is parsed into, without None and limits: the job checks those."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return str
    options = [option for option in get_args(annotation) if option is not type(None)]
    return _plain_type(options[0]) if options and get_origin(annotation) is not dict else annotation


def _number(kind: type) -> Callable[[str], Any]:
    """A parser of numbers whose error quotes the word, which typer's own does not."""

    def parse(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            raise typer.BadParameter(f"{word!r} is not a {'whole number' if kind is int else 'number'}") from None

    return parse


def _job_options() -> list[inspect.Parameter]:
    """An option for every field of a job, in the order of the groups."""
    # `on` is an option of its own for those commands that start processes.
    return [
        _option(name, job_fields()[name], panel, completion.field(name))
        for panel, names in job_groups().items() for name in names if name != "on"
    ]


def _race_options() -> list[inspect.Parameter]:
    return [_option(name, Race.model_fields[name], RACE, _COMPLETED.get(name)) for name in OPTIONS]


def _option(name: str, field: FieldInfo, panel: str, complete: completion.Completion | None) -> inspect.Parameter:
    """The option for a field of a job or of a race."""
    more = dict(_DIFFERENT.get(name, {}))
    kind = more.pop("kind", None) or _plain_type(field.annotation)
    word = more.pop("flag", flag(name))
    about = more.pop("help", None) or _help_of(name, field)
    if kind is bool:
        word += f"/--no-{name.replace('_', '-')}"
    elif kind in (int, float):
        more = {"parser": _number(kind), "metavar": f"<{kind.__name__}>", **more}
    elif kind is str and complete is not None:
        more["autocompletion"] = complete
    option = typer.Option(word, help=about, show_default=False, rich_help_panel=panel, **more)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help_of(name: str, field: FieldInfo) -> str:
    """What a field says of itself, with options in place of other fields' names, and with its default."""
    about = re.sub(r"`([a-z]+_[a-z_]+)`", lambda match: flag(match[1]), field.description or name)
    about = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", about)
    about = about if about.startswith("sgd") else f"{about[0].upper()}{about[1:]}"
    shown = field.default is not None and "by default" not in about.lower()
    return f"{about} [default: {field.default}]" if shown else about


def _in_panels(own: list[inspect.Parameter], of_job: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """A command's parameters in the order of its help: panels of its own first, then the groups of a job.

    An option of its own without a panel goes to the output's.
    """
    parameters = []
    for parameter in own:
        kind, info = get_args(parameter.annotation)
        if isinstance(info, OptionInfo) and info.rich_help_panel is None:
            info = copy(info)
            info.rich_help_panel = OUTPUT
        parameters.append(parameter.replace(annotation=Annotated[kind, info]))
    order = list(job_groups())

    def place(parameter: inspect.Parameter) -> int:
        panel = get_args(parameter.annotation)[1].rich_help_panel
        return order.index(panel) if panel in order else -1

    return sorted([*parameters, *of_job], key=place)


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for every field of a job, which it gets as `fields`; if it has a parameter
    `race_fields`, also one for every option of a race."""
    signature = inspect.signature(command, eval_str=True)
    gathered = {"fields": _job_options(), "race_fields": _race_options()}
    gathered = {name: options for name, options in gathered.items() if name in signature.parameters}
    own = [parameter for parameter in signature.parameters.values() if parameter.name not in gathered]

    def wrapped(**words: Any) -> None:
        mine = {parameter.name: words[parameter.name] for parameter in own}
        for name, options in gathered.items():
            values = {option.name: words[option.name] for option in options}
            mine[name] = {field: value for field, value in values.items() if value is not None}
        if "model_args" in mine["fields"]:
            mine["fields"]["model_args"] = _model_args(mine["fields"]["model_args"])
        command(**mine)

    first = [parameter.name for parameter in own].index("vary") + 1 if "race_fields" in gathered else 0
    own_and_race = [*own[:first], *gathered.get("race_fields", []), *own[first:]]
    parameters = _in_panels(own_and_race, gathered["fields"])
    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    wrapped.command_class = JobCommand  # type: ignore[attr-defined]
    return wrapped


class JobCommand(TyperCommand):
    """A command with the options of a job, whose `--help` is not alone in a panel of its own."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT  # type: ignore[attr-defined]
        return option


def _model_args(words: list[str]) -> dict[str, Any]:
    """`key=value` words as arguments; values are parsed as YAML, so numbers and booleans keep their type."""
    from velodrome.clusters.yaml_files import parse_yaml

    arguments: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise BadRequest(f"--model-arg {word!r}: write it as key=value, for example width=64")
        try:
            arguments[key] = parse_yaml(value)
        except ValueError as error:
            raise BadRequest(f"--model-arg {word!r}: the value cannot be read: {error}") from None
    return arguments


def asking(call: Callable[[list[str]], T], trusted: list[str] | None) -> T:
    """What `call` returns, with the names of code that may run. It refuses what is not among them: on a terminal the
    user is asked, once, unless it is code of a library, which he has to name himself."""
    from velodrome.run.trust import UntrustedCode

    names = list(trusted or ())
    try:
        return call(names)
    except UntrustedCode as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty() and all(code.is_users for code in error.codes)):
            raise
        complain(error)
        if not typer.confirm("Run this code?", default=False, err=True):
            raise typer.Exit(2) from None
        return call([*names, *(code.name for code in error.codes)])


def tell_code(what: str, codes: Sequence[Code]) -> None:
    """Say before a start which code a file names."""

    if codes:
        say_on_stderr(f"{what} names code: {', '.join(map(str, codes))}")


def job_from(
    file: Path | None, fields: dict[str, Any], trusted: list[str] | None = None, on: str | None = None
) -> Job:
    """The job of a YAML file with options on top. Code that only the file names is reported, or refused; `on` takes the
    place of the cluster that it names."""
    from velodrome.clusters.yaml_files import read_yaml
    from velodrome.job.job import make_job
    from velodrome.races.request import words_in
    from velodrome.run.trust import admit_file

    base = read_yaml(file) if file is not None else {}
    if base.keys() & {"job", "vary"}:
        raise BadRequest(f"{str(file)!r} is a race: run it with `velodrome race {shlex.quote(str(file))}`")
    job = make_job({**base, **fields})
    if file is not None:
        asked = job if on is None else job.model_copy(update={"on": None})
        tell_code(str(file), asking(lambda names: admit_file([asked], file, words_in(fields), names), trusted))
    return job


def where(on: str | None, place: list[str] | None = None, job: Job | None = None) -> Target:
    """What `--on` and `--place` ask for, or else the job."""
    from velodrome.clusters import DEFAULT, target_of, where_of
    from velodrome.clusters.plan import parse_pins

    return target_of(where_of(job, on) if job is not None else on or DEFAULT, parse_pins(place or []))


def command_on(name: str, path: Path) -> str:
    """The command of that name on a run or race, as it would be typed."""
    runs = "" if path.parent == DEFAULT_RUNS else f" --runs {shlex.quote(str(path.parent))}"
    return f"velodrome {name} {path.name}{runs}"


def relative(path: str) -> Path:
    """A path as short as it can be typed from here: relative to the current folder if it is below."""
    here = Path.cwd()
    return Path(path).relative_to(here) if Path(path).is_relative_to(here) else Path(path)


Tolerance = Annotated[
    str | None, typer.Option("--tolerance", help="Treat differences below this share as ties [5%].")
]
AccuracyMargin = Annotated[
    str | None,
    typer.Option("--accuracy-margin", help="How much less accurate a faster configuration may be [0.01]."),
]
