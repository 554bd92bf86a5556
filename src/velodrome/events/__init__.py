"""Events as lines of text: one JSON object per line, behind a fixed prefix on a process's standard output; and what is
wrong with a record, as sentences for a person.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from velodrome import files
from velodrome.events.models import Event, EventBase, Kind

PREFIX = "@velodrome "
#: Bytes of an event that is read from a file; the confusion matrix of 2,000 classes takes a fifth of it.
LONGEST_LINE = 64 << 20
#: Lines of a file that are no event: so many of them are skipped, and a file with more is read no further.
MOST_STRANGE = 100_000


_PROGRESS = re.compile(r'"kind": ?"progress"')


@cache
def _union() -> TypeAdapter[Event]:
    return TypeAdapter(Event)


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to the Python number it holds."""
    return value.item() if hasattr(value, "item") else float(value)


def to_line(event: EventBase | Mapping[str, Any]) -> str:
    """Serialise an event to one line of JSON, without the prefix. NaN and infinity, which JSON lacks, become null."""
    fields = event if isinstance(event, Mapping) else event.as_json()
    try:
        return to_json(fields, inf_nan_mode="null", fallback=_plain).decode()
    except PydanticSerializationError:
        # Text that is not Unicode, such as the name of a file in another encoding.
        return json.dumps(_replace(fields), separators=(",", ":"), default=_plain)


def _replace(value: Any) -> Any:
    """Return the same with '?' for what no Unicode text can hold, and null for what is not finite."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _replace(item) for key, item in value.items()}
    return [_replace(item) for item in value] if isinstance(value, list | tuple) else value


def parse_event(line: str) -> Event | None:
    """Return the event in a line of a process's output, or None for a line of its log."""
    if not line.startswith(PREFIX):
        return None
    with suppress(ValidationError):
        return _union().validate_json(line[len(PREFIX) :])
    return None


def to_event(fields: Mapping[str, Any]) -> Event:
    """Return plain fields as an event; raises `pydantic.ValidationError` if they are none."""
    return _union().validate_python(fields)


def make_event(kind: Kind, *, role: str | None = None, rank: int | None = None, **fields: Any) -> Event:
    """Return an event of the controller itself, which happens now."""
    now = round(time.time(), 4)
    return to_event({"time": now, "role": role, "rank": rank, "received": now, "kind": kind, **fields})


def parse_stored(line: str) -> Event | None:
    """Return the event in a line of an event file, with or without prefix; None if it is no event of this version."""
    if '"kind"' not in line:  # most lines that are no event are skipped without parsing
        return None
    try:
        return _union().validate_json(line.removeprefix(PREFIX))
    except ValidationError:
        return None


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a run: one, or one per process if its processes were started manually."""
    return [path for path in (folder / "events.jsonl", *sorted(folder.glob("events-*.jsonl"))) if path.is_file()]


def read_events(path: Path, *, progress: bool = True, only: Kind | None = None) -> Iterator[Event]:
    """Yield the events of a file; lines that are no event of this version are skipped, up to `MOST_STRANGE` of them.

    Without `progress`, which is half of a long file, lines of that kind are skipped unread; so are all others with
    `only` one kind.
    """
    wanted = None if only is None else re.compile(rf'"kind": ?"{only}"')
    strange = 0
    with suppress(OSError):
        for line in files.read_lines(path, LONGEST_LINE, inside=path.parent):
            if (not progress and _PROGRESS.search(line, 0, 300)) or (wanted is not None and not wanted.search(line)):
                continue
            event = parse_stored(line)
            if event is not None:
                yield event
            elif (strange := strange + 1) > MOST_STRANGE:
                return


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
