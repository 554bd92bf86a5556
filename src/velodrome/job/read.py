"""Makes a job of the fields that a user gave, and turns validation errors into sentences."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from velodrome.errors import BadRequest, which_name
from velodrome.job.job import Job
from velodrome.job.wording import in_words

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
        return f"no field {name!r}: {which_name(name, Job.model_fields, FIELDS_LISTED_BY)}"
    if not name:  # what several fields say together
        return reason_of(error)
    option = "--fault" if name == "faults" else f"--{name.replace('_', '-')}"
    given, reason = repr(error["input"]), reason_of(error)
    if isinstance(error["input"], dict | list):
        given = repr(in_words(error["input"]))
    return f"{option}: {reason}" if given in reason else f"{option} {given}: {reason}"


def reason_of(error: Any) -> str:
    """Why pydantic refuses a value, as the end of a sentence."""
    reason = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return reason.replace("a valid dictionary", "fields by name")
