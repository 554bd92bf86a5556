"""What a YAML text or file holds, with the booleans and numbers of YAML 1.2; what is wrong with a file, as a sentence.
For the controller only.

The one loader of jobs, races and clusters. YAML 1.1, which PyYAML reads, takes the field `on` for a boolean and `30:00`
for 1800. Whatever PyYAML writes is read back as it was: it quotes texts that YAML 1.1 takes for something else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from velodrome import files
from velodrome.errors import BadRequest

#: What PyYAML raises for texts that are no YAML, or that are and say an impossible value: `2022-13-45`, `!!bool x`.
_BROKEN = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: Levels and values that a text may hold, with every alias in full: both grow far beyond the size of the text.
_DEEPEST, _MOST_VALUES = 50, 1_000_000
#: Values that may be written down, which takes half a second to read.
_MOST_WRITTEN = 100_000
#: The largest whole number, in either direction: nothing can count with more.
_LARGEST_INT = 2**63 - 1
#: Characters of a whole number, to any base.
_MOST_DIGITS = 100

_BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float"))
#: In place of PyYAML's: no `yes`, `no`, `on` and `off`, and no numbers to the base of 60.
_RESOLVERS = (
    (_BOOL, "true|True|TRUE|false|False|FALSE", "tTfF"),
    (_INT, r"[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+", "-+0123456789"),
    (_FLOAT, r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
     r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+0123456789."),
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads booleans and numbers of YAML 1.2, and refuses a name that is given twice: PyYAML would take the last."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise ValueError(f"{key.value!r} is defined twice, again in line {key.start_mark.line + 1}")
            names.add(str(key.value))
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # Python refuses to read thousands of digits, with a sentence for programmers.
        value = int(super().construct_yaml_int(node)) if len(node.value) <= _MOST_DIGITS else None
        if value is None or abs(value) > _LARGEST_INT:
            raise ValueError(f"{node.value[:20]!r} in line {node.start_mark.line + 1} is too large a number")
        return value


_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), [*_first])


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; `ValueError`, and no other, for whatever is wrong with it."""
    try:
        _check_size(text)
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            _count_values(root, {}, 0)
            return None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except _BROKEN as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _check_size(text: str) -> None:
    """Refuse what is nested too deeply, which would fill libyaml's stack and end the process, and what is too long."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        values += isinstance(event, yaml.ScalarEvent)
        if values > _MOST_WRITTEN:
            raise ValueError(f"it holds more than {_MOST_WRITTEN:,} values")
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
        inner = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_count_values(child, known, depth + 1) for child in inner)
    if known[id(node)] > _MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {_MOST_VALUES:,} values")
    return known[id(node)]


#: Bytes of a file.
LARGEST = 4 << 20


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; `BadRequest` for whatever is wrong with it."""
    try:
        content = read_content(path, LARGEST)
    except FileNotFoundError:
        raise BadRequest(f"no file {str(path)!r}") from None
    if not isinstance(content, dict):
        raise BadRequest(f"{str(path)!r} must hold fields such as 'dataset: digits', one a line")
    return content


def read_content(path: Path, largest: int) -> Any:
    """What a YAML file holds; `BadRequest` if it cannot be read, `FileNotFoundError` if there is none."""
    try:
        return parse_yaml(files.read_text(path, largest))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadRequest(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"{str(path)!r} is not UTF-8 text: {error}") from None
    except ValueError as error:
        raise BadRequest(f"{str(path)!r} is not YAML: {error}") from None
