"""What is wrong with an event or a result, as sentences for a person."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from velodrome.events.fields import LARGEST_INT
from velodrome.events.result import RunResult

#: What readers add to a result: a file that holds it does not speak for them.
_ADDED = ("job", "folder", "examples_trained")
#: Where there may be a number that no field can hold.
_ODD_NUMBER = re.compile(rb"NaN|Infinity|[0-9]{19}|[eE]\+?[0-9]{3}")

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


class BadResult(ValueError):
    """What is wrong with a stored result; each sentence continues one that starts with the file's name."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(sentences[0])
        self.sentences = tuple(sentences)


def parse_result(text: bytes) -> dict[str, Any]:
    """Return the fields of a result as they were written, all of the documented types; `BadResult` otherwise.

    This is the only way into the program for a stored result: whoever holds one need not check its fields again.
    """
    try:
        fields = from_json(text)
    except ValueError:
        raise BadResult(["is not whole"]) from None
    if not isinstance(fields, dict):
        raise BadResult(["is not an object"])
    for name in _ADDED:
        fields.pop(name, None)
    try:
        RunResult.model_validate(fields)
    except ValidationError as error:
        raise BadResult([*sentences(error)]) from None
    # Fields that are not documented are kept as they are, except for numbers that nothing can count with.
    if _ODD_NUMBER.search(text) and (place := _odd_number(fields)) is not None:
        raise BadResult([f"has {_path(place)!r}, which is not a number to count with"])
    return fields


def _odd_number(value: Any) -> list[int | str] | None:
    """The place of a number that is not finite or has more than 64 bits, the innermost name last."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    if isinstance(value, int):
        return None if abs(value) <= LARGEST_INT else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        if (place := _odd_number(one)) is not None:
            return [name, *place]
    return None


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
        return f"has {_path(place)} with {context['error']}"
    if kind == "missing_of_run":
        return f"has no {context['name']}"
    if kind == "missing":
        return f"{_subject(place[:-1])}has no {place[-1]!r}"
    expected = _expected(kind, context)
    if place and isinstance(place[-1], int):
        return f"{_path(place)} is {expected}"
    return f"{_subject(place[:-1])}has {place[-1] if place else ''!r} {_short(value)}, which is {expected}"


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "greater_than_equal":
        return "negative" if context["ge"] == 0 else f"less than {context['ge']}"
    if kind == "literal_error":
        return f"not one of {context['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    return _EXPECTED.get(kind, "not valid")


def _path(place: Sequence[int | str]) -> str:
    """Write a place as people do: `nodes[0].network_bytes`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _subject(place: Sequence[int | str]) -> str:
    return f"{_path(place)} " if place else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
