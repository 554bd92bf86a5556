"""The user's clusters: `clusters.yaml` of the project, then of the user's configuration, or the file of a variable; and
the fields that every cluster has. Each launcher adds fields of its own.

A launcher's options are one pydantic model: `clusters.yaml` gives it fields, `--on NAME:TEXT` gives it a text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from velodrome import files
from velodrome.clusters.plan import Placement, can_be_placed
from velodrome.clusters.yaml_files import parse_yaml, read_content
from velodrome.errors import BadRequest, which_name
from velodrome.job.job import reason_of

#: Variable with the only file to be read.
VARIABLE = "VELODROME_CLUSTERS"
FILE = "clusters.yaml"
_LARGEST = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_EXAMPLE = "'lab: {launcher: ssh, hosts: [a, b]}'"


@dataclass(frozen=True)
class Definition:
    """A cluster as a file has it."""

    name: str
    launcher: str
    #: Everything but the launcher, not yet checked.
    fields: Mapping[str, Any]
    file: Path


def sources() -> list[Path]:
    """The files that may define clusters, the first that defines a name wins."""
    if chosen := os.environ.get(VARIABLE):
        return [Path(chosen).expanduser()]
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return [Path(FILE), config / "velodrome" / FILE]


def load() -> dict[str, Definition]:
    """Every cluster by name; `BadRequest` names the file that is wrong."""
    defined: dict[str, Definition] = {}
    for file in sources():
        for name, definition in _read(file).items():
            defined.setdefault(name, definition)
    return defined


def find(name: str) -> Definition | None:
    """The cluster of that name, if a file defines it."""
    return load().get(name)


def _read(file: Path) -> dict[str, Definition]:
    try:
        content = read_content(file, _LARGEST)
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise BadRequest(f"{VARIABLE}={str(file)!r}: there is no such file") from None
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadRequest(f"{str(file)!r} must hold clusters by name, such as {_EXAMPLE}")
    return {str(name): _definition(str(name), fields, file) for name, fields in content.items()}


def _definition(name: str, fields: Any, file: Path) -> Definition:
    check_name(name, f"cluster {name!r} in {file}")
    if not isinstance(fields, dict) or not isinstance(fields.get("launcher"), str):
        raise BadRequest(f"cluster {name!r} in {file}: its launcher is missing; write it as {_EXAMPLE}")
    rest = {str(key): value for key, value in fields.items() if key != "launcher"}
    return Definition(name, fields["launcher"], rest, file)


def check_name(name: str, where: str) -> None:
    """Refuse a name that could be mistaken for a launcher with options, or for a path."""
    if not _NAME.fullmatch(name):
        raise BadRequest(f"{where}: a name begins with a letter or digit, and has only letters, digits, '.', '_' and "
                         "'-'")


def add(name: str, launcher: str, fields: Mapping[str, Any], file: Path) -> Definition:
    """Write a cluster to a file, beside those that it has; `BadRequest` if it has one of that name."""
    check_name(name, f"cluster {name!r}")
    existing = _read(file) if file.exists() else {}
    if name in existing:
        raise BadRequest(f"cluster {name!r} is in {file} already: choose another name, or edit the file")
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    text = _with_definition(before, name, {"launcher": launcher, **fields})
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(file, text, shared=True)
    return _read(file)[name]


def _with_definition(before: str, name: str, fields: Mapping[str, Any]) -> str:
    """The text of a file with one cluster more. What it has stays as it is written, comments included; where nothing
    can be appended, because it is in braces or ends with `...`, all of it is written anew."""
    known = parse_yaml(before) or {}
    wanted = {**known, name: dict(fields)}
    block = yaml.safe_dump({name: dict(fields)}, sort_keys=False, default_flow_style=None)
    appended = f"{before.rstrip()}\n\n{block}".lstrip("\n")
    try:
        if parse_yaml(appended) == wanted:
            return appended
    except ValueError:
        pass
    return yaml.safe_dump(wanted, sort_keys=False, default_flow_style=None)


class ClusterOptions(BaseModel):
    """Fields of every cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    placement: Literal["spread", "pack"] = Field(
        "spread", description="give each process a host of its own while there are some (spread), or fill one host "
        "after the other (pack)"
    )
    slots: int | None = Field(
        None, ge=1, description="processes that `pack` puts on one host; by default as many as the host has cores"
    )
    servers: Literal["spread", "beside", "apart"] | None = Field(
        None, description="where parameter servers run: on the next free hosts like any process (spread), on the hosts "
        "of the workers (beside), or on hosts that have no worker (apart); by default where the engine's own launcher "
        "has them, which is beside for mxnet and spread for all others"
    )
    place: dict[str, str] = Field(
        default_factory=dict,
        description="hosts for particular processes: a role, or a role and rank such as `worker:1`, with one host "
                    "or several, separated by commas"
    )

    @field_validator("place")
    @classmethod
    def _places_can_be_read(cls, places: dict[str, str]) -> dict[str, str]:
        for who, hosts in places.items():
            if not can_be_placed(who, hosts):
                raise ValueError(f"{who!r} on {hosts!r} cannot be read: write it as {{server: a, 'worker:1': b}}")
        return places

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        """The fields that stand behind the launcher's name and a colon, as in `--on ssh:a,b`; `BadRequest`.

        By default the launcher's own fields as `NAME=VALUE,NAME=VALUE`.
        """
        return dict(inline_fields(text, [name for name in cls.model_fields if name not in ClusterOptions.model_fields]))

    @property
    def named_hosts(self) -> list[str] | None:
        """The hosts that the definition names; None if others decide which there are."""
        return None

    @property
    def policy(self) -> Placement:
        """How processes are placed."""
        return Placement(self.placement, self.servers, self.place, self.slots)

    def pinned(self, pins: Mapping[str, str]) -> Self:
        """The same with pins of the command line on top."""
        return self.model_copy(update={"place": {**self.place, **pins}})


def validated(kind: type[ClusterOptions], fields: Mapping[str, Any], where: str) -> Any:
    """Options of that kind, or `BadRequest` with every mistake in them; `where` begins the sentence."""
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise BadRequest(f"{where}: " + "; ".join(_sentence(kind, part) for part in error.errors())) from None


def _sentence(kind: type[ClusterOptions], error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"no field {name!r}: {which_name(name, kind.model_fields)}"
    if error["type"] == "missing":
        return f"the field {name!r} is missing"
    given, reason = repr(error["input"]), reason_of(error)
    if not name:  # of all fields together
        return reason
    return f"{name}: {reason}" if given in reason else f"{name} {given}: {reason}"


def inline_fields(text: str, known: Collection[str], example: str = "NAME=VALUE,NAME=VALUE") -> dict[str, str]:
    """The values of `NAME=VALUE,NAME=VALUE` by name, each as a text; `BadRequest` for names that are unknown, given
    twice or without a value."""
    fields: dict[str, str] = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or name not in known:
            raise BadRequest(f"{word!r} is none of {', '.join(known)}; write {example}")
        if name in fields:
            raise BadRequest(f"{name!r} is given twice; choose one value")
        if not value:
            raise BadRequest(f"{word!r} has no value; write {example}, or leave {name!r} out")
        fields[name] = value
    return fields
