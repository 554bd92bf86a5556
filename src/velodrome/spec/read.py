"""Reads what the user wrote, and turns everything that is wrong with it into sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from velodrome.errors import BadRequest
from velodrome.spec.job import Job

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: What PyYAML raises for texts that are no YAML, or that are and say an impossible value: `2022-13-45`, `!!bool x`.
_BROKEN = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; `ValueError`, and no other, for whatever is wrong with it."""
    try:
        return yaml.load(text, Loader=_LOADER)
    except _BROKEN as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(f"no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {str(path)!r}: {error}") from None
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise BadRequest(f"{str(path)!r} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise BadRequest(f"{str(path)!r} must hold fields such as 'dataset: digits', one a line")
    return content


def make_job(fields: dict[str, Any]) -> Job:
    """A job, or `BadRequest` with every mistake in it."""
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        raise BadRequest("; ".join(_sentence(part) for part in error.errors())) from None


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"no field {name!r}: choose from {', '.join(Job.model_fields)}"
    option = f"--{name.replace('_', '-')}"
    reason = str(error["msg"]).removeprefix("Value error, ")
    reason = reason.replace("Input should be", "must be")
    given = f"{error['input']!r}"
    return f"{option}: {reason}" if given in reason else f"{option} {given}: {reason}"
