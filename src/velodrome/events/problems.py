"""What is wrong with an event or a result, as sentences for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

#: What pydantic calls a mistake, and how the value differs from what is expected.
_EXPECTED = {
    "string_type": "not text",
    "bool_type": "not true or false",
    "int_type": "not a whole number",
    "int_from_float": "not a whole number",
    "int_parsing_size": "not a whole number",
    "float_type": "not a number",
    "finite_number": "not a finite number",
    "list_type": "not a list",
    "dict_type": "not an object",
    "null": "null instead of a value",
    "model_type": "not an object",
    "model_attributes_type": "not an object",
    "less_than_equal": "too large",
    "string_pattern_mismatch": "not a format",
}


def sentences(error: ValidationError, *, union: bool = False) -> Iterator[str]:
    """Yield each mistake as the end of a sentence about the record; `union` for an event of any kind."""
    for problem in error.errors(include_url=False):
        kind, place, value = problem["type"], problem["loc"], problem["input"]
        if kind == "union_tag_not_found":
            yield "has no 'kind'"
        elif kind == "union_tag_invalid":
            yield f"is of the unknown kind {problem['ctx']['tag']!r}"
        else:
            yield _sentence(kind, place[1:] if union else place, value, problem.get("ctx", {}))


def _sentence(kind: str, place: Sequence[int | str], value: Any, context: Mapping[str, Any]) -> str:
    if kind == "value_error":
        return f"has {path_of(place)} with {context['error']}"
    if kind == "missing_of_run":
        return f"has no {context['name']}"
    if kind == "missing":
        return f"{_subject(place[:-1])}has no {place[-1]!r}"
    expected = _expected(kind, context)
    if place and isinstance(place[-1], int):
        return f"{path_of(place)} is {expected}"
    return f"{_subject(place[:-1])}has {place[-1] if place else ''!r} {_short(value)}, which is {expected}"


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "greater_than_equal":
        return "negative" if context["ge"] == 0 else f"less than {context['ge']}"
    if kind == "literal_error":
        return f"not one of {context['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    return _EXPECTED.get(kind, "not valid")


def path_of(place: Sequence[int | str]) -> str:
    """Write a place as people do: `nodes[0].network_bytes`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _subject(place: Sequence[int | str]) -> str:
    return f"{path_of(place)} " if place else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
