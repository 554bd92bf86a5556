"""Reads YAML that a user wrote, and turns everything that is wrong with it into a sentence. For the controller only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from velodrome.errors import BadRequest

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
