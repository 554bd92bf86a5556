"""The user's clusters: `clusters.yaml` of the project, then of the user's configuration, or the file of a variable.

Only finds and writes definitions: what their fields mean is up to the launcher that each names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from velodrome import files
from velodrome.clusters.yaml_text import parse_yaml
from velodrome.errors import BadRequest

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
    found: dict[str, Definition] = {}
    for file in sources():
        for name, definition in _read(file).items():
            found.setdefault(name, definition)
    return found


def find(name: str) -> Definition | None:
    """The cluster of that name, if a file defines it."""
    return load().get(name)


def _read(file: Path) -> dict[str, Definition]:
    try:
        text = files.read_text(file, _LARGEST)
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise BadRequest(f"{VARIABLE}={str(file)!r}: there is no such file") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {str(file)!r}: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise BadRequest(f"{str(file)!r} is not YAML: {error}") from None
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
        raise BadRequest(f"{where}: a name begins with a letter or digit and has only these, '.', '_' and '-'")


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
