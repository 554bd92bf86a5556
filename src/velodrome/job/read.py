"""How messages quote what a user asked for: as it would be typed, never as Python would print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from velodrome.errors import BadRequest, which_name
from velodrome.job.job import Job, flag, job_fields

#: Characters of a quoted value; nobody reads more of it.
_MOST = 80


def in_words(value: Any) -> str:
    """A value of a request as text: `engine=torch, workers=2` for fields, `1, 2` for a list."""
    text = _text(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def entry_in_words(entry: Any) -> str:
    """An entry of a race as `--vary` takes it, with its other fields after it: `torch/ddp, epochs=2`."""
    if not isinstance(entry, Mapping):
        return in_words(entry)
    rest = dict(entry)
    parts = []
    if "engine" in rest and "strategy" in rest:
        servers = f":{rest.pop('servers')}" if "servers" in rest else ""
        parts.append(f"{in_words(rest.pop('engine'))}/{in_words(rest.pop('strategy'))}{servers}")
    return ", ".join([*parts, *([in_words(rest)] if rest else [])]) or "no fields"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


#: The command whose help lists the fields of a job, as options.
FIELDS_LISTED_BY = "velodrome train --help"


def make_job(fields: dict[str, Any]) -> Job:
    """A job, or `BadRequest` with every mistake in it."""
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        raise BadRequest("; ".join(_sentence(part) for part in error.errors())) from None


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"no field {name!r}: {which_name(name, job_fields(), FIELDS_LISTED_BY)}"
    if not name:  # what several fields say together
        return reason_of(error)
    option = "--fault" if name == "faults" else flag(name)
    value, reason = repr(error["input"]), reason_of(error)
    if isinstance(error["input"], dict | list):
        value = repr(in_words(error["input"]))
    return f"{option}: {reason}" if value in reason else f"{option} {value}: {reason}"


def reason_of(error: Any) -> str:
    """Why pydantic refuses a value, as the end of a sentence."""
    reason = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return reason.replace("a valid dictionary", "fields by name")
