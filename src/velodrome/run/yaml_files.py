"""Reads YAML that a user wrote, and turns everything that is wrong with it into a sentence. For the controller only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from velodrome import files
from velodrome.errors import BadRequest

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: What PyYAML raises for texts that are no YAML, or that are and say an impossible value: `2022-13-45`, `!!bool x`.
_BROKEN = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: Bytes of a file.
LARGEST = 4 << 20
#: Levels and values that a file may hold, with every alias in full: both grow far beyond the size of the file.
_DEEPEST, _MOST_VALUES = 50, 1_000_000


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; `ValueError`, and no other, for whatever is wrong with it."""
    try:
        _check_depth(text)
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            _count_values(root, {}, 0)
            return None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except _BROKEN as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _check_depth(text: str) -> None:
    """Refuse what is nested too deeply: libyaml would fill the stack and end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


def _count_values(node: yaml.Node | None, known: dict[int, int], depth: int) -> int:
    """The values of a node, each alias counted in full; `known` are the counts of nodes that were counted before."""
    if depth > _DEEPEST:
        raise ValueError("it contains itself")
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        inner = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_count_values(one, known, depth + 1) for one in inner)
    if known[id(node)] > _MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {_MOST_VALUES:,} values")
    return known[id(node)]


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
