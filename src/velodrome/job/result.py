"""A stored result as readers get it: the result of a run, typed, with its job and where it lies."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetPydanticSchema, PrivateAttr, ValidationError
from pydantic_core import from_json

from velodrome.events import path_of, sentences
from velodrome.events.fields import LARGEST_INT
from velodrome.events.result import RunResult, Seconds, Throughput
from velodrome.job.job import Job

Ended = Literal["finished", "failed", "interrupted"]
Status = Literal["running", "finished", "failed", "interrupted", "unreadable"]
#: The cause of a run that was ended early, because it could not win its race any more.
BEATEN = "beaten"

#: Where there may be a number that no field can hold.
_ODD_NUMBER = re.compile(rb"NaN|Infinity|[0-9]{19}|[eE]\+?[0-9]{3}")
#: Fields that a result takes over from its job.
_AS_REQUESTED = (RunResult.model_fields.keys() & Job.model_fields.keys()) - {"implementation", "faults"}


class Result(RunResult):
    """The result of a run with what its reader knows besides; of a run that has none yet, what its job says.

    `as_json` leaves out what the reader added.
    """

    #: Only runs that ended are stored; a reader also sees runs that are still running, or that cannot be read.
    status: Annotated[  # type: ignore[assignment]
        Status, GetPydanticSchema(lambda _, handler: handler(Ended)),
        Field(description=RunResult.model_fields["status"].description),
    ]
    folder: Path | None = Field(None, exclude=True, description="where the run lies, which may have been moved")
    job: Job | None = Field(None, exclude=True, description="None where the reader does not need it")
    job_as_written: dict[str, Any] | None = Field(
        None, exclude=True, description="the fields that the file of the job has, those of other versions too; what it "
        "lacks is newer, and the run used the default"
    )
    examples_trained: int | None = Field(None, exclude=True, description="counted from the events, where needed")
    data_version: str | None = Field(None, exclude=True, description="name of its data, if they changed in the race")
    data_change: str | None = Field(None, exclude=True, description="how they changed, as a sentence")
    #: The fields as they were read from a file.
    _stored: dict[str, Any] | None = PrivateAttr(None)

    @classmethod
    def unfinished(cls, run: str, status: Status, job: Job, fields: dict[str, Any], folder: Path) -> Result:
        """What is known of a run that has no result: its job, and the fields that its file has."""
        made = cls.model_construct(
            set(fields) & set(RunResult.model_fields) | {"run", "status"},
            **{name: getattr(job, name) for name in _AS_REQUESTED},
            run=run, path=str(folder), status=status, test=None, history=[], nodes=[], versions={},
            seconds=Seconds.model_construct(startup=0.0, train=None, evaluate=None, total=0.0),
            throughput=Throughput.model_construct(examples_per_second=None, batches_per_second=None),
            started=0.0, ended=0.0, job=job, job_as_written=fields, folder=folder,
        )
        made._stored = {**fields, "run": run, "status": status}
        return made

    def with_job(self, job: Job, fields: dict[str, Any] | None = None, **added: Any) -> Result:
        """The same with its job, the fields that the file of the job has, by default all, and other fields."""
        fields = job.model_dump() if fields is None else fields
        return self.model_copy(update={"job": job, "job_as_written": fields, **added})

    @property
    def ended_early(self) -> bool:
        """Whether its race ended the run because it could not win any more."""
        return self.status == "interrupted" and self.error is not None and self.error.cause == BEATEN

    def as_json(self) -> dict[str, Any]:
        """Return the fields as they are stored, those of other versions included."""
        return super().as_json() if self._stored is None else dict(self._stored)


#: What readers add to a result: a file that holds it does not speak for them.
ADDED = tuple(name for name, field in Result.model_fields.items() if field.exclude)


class BadResult(ValueError):
    """What is wrong with a stored result; each sentence continues one that starts with the file's name."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(sentences[0])
        self.sentences = tuple(sentences)


def parse_result(text: bytes, folder: Path | None = None) -> Result:
    """Return a stored result, all of its fields of the documented types; `BadResult` otherwise.

    This is the only way into the program for a stored result: whoever holds one need not check its fields again.
    """
    try:
        fields = from_json(text)
    except ValueError:
        raise BadResult(["is not whole"]) from None
    if not isinstance(fields, dict):
        raise BadResult(["is not an object"])
    for name in ADDED:
        fields.pop(name, None)
    try:
        result = Result.model_validate({**fields, "folder": folder})
    except ValidationError as error:
        raise BadResult([*sentences(error)]) from None
    # Fields that are not documented are kept as they are, except for numbers that nothing can count with.
    if _ODD_NUMBER.search(text) and (place := _odd_number(fields)) is not None:
        raise BadResult([f"has {path_of(place)!r}, which is not a number to count with"])
    result._stored = fields
    return result


def _odd_number(value: Any) -> list[int | str] | None:
    """The place of a number that is not finite or has more than 64 bits, the innermost name last."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    if isinstance(value, int):
        return None if abs(value) <= LARGEST_INT else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        if (place := _odd_number(item)) is not None:
            return [name, *place]
    return None
