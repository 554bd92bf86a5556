"""Reads YAML files that a user wrote, and turns everything that is wrong with them into a sentence. For the controller
only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.clusters.yaml_text import parse_yaml as parse_yaml
from velodrome.errors import BadRequest

#: Bytes of a file.
LARGEST = 4 << 20


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = files.read_text(path, LARGEST)
    except FileNotFoundError:
        raise BadRequest(f"no file {str(path)!r}") from None
    except OSError as error:
        raise BadRequest(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"{str(path)!r} is not UTF-8 text: {error}") from None
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise BadRequest(f"{str(path)!r} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise BadRequest(f"{str(path)!r} must hold fields such as 'dataset: digits', one a line")
    return content
