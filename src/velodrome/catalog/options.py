"""Options: fields of a job that an engine, a strategy or a task declares, beside its description in the catalog.

From the declaration follow the option of the command line with its help and completion, the field of the form, of
job.yaml and of `--vary`, its place in the reference, and that a job which cannot use it is refused. Code that uses an
option reads its value by `OPTION.of(job)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar, cast

from pydantic import AfterValidator, Field

Value = TypeVar("Value")
Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]


class Request(Protocol):
    """What a description reads of a job."""

    @property
    def strategy(self) -> str: ...

    @property
    def workers(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def implementation(self) -> str: ...

    @property
    def keep_going(self) -> bool: ...

    @property
    def has_own_optimizer(self) -> bool: ...

    @property
    def model_extra(self) -> dict[str, Any] | None:
        """The values of options by name."""


@dataclass(frozen=True, eq=False)
class Option(Generic[Value]):
    """A field of a job that has a meaning only for those who declare it."""

    name: str
    #: What its value may be, as pydantic validates it.
    type: Any
    #: Its value in a job that does not set it. A strategy may have another default, which the job then gets.
    default: Value
    help: str
    #: The group of options in which help and form show it.
    group: str = "Distribution"
    #: The field that it follows in help and files. One without is the last of its group, and files have it only where
    #: it is set, so that they can be read where its package is not installed.
    after: str | None = None
    #: The field that it follows in files, if that is another one.
    stored_after: str | None = None
    #: A field that takes the values of this option as well.
    also: str | None = None
    #: Whether synchronous workers end with the weights of one when it is set.
    exact: bool = True

    def of(self, job: Request) -> Value:
        """Its value in a job."""
        return cast("Value", (job.model_extra or {}).get(self.name, self.default))


def parses(parse: Callable[[str], object]) -> AfterValidator:
    """Checks that a function can parse a text; it raises `ValueError` if not."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def parsed_by(parse: Callable[[str], object]) -> Any:
    """The type of a text that a function can parse."""
    return Annotated[str, parses(parse)]


def placed(
    names: Iterable[str], options: Iterable[Option[Any]], place: Callable[[Option[Any]], str | None]
) -> list[str]:
    """Names of fields with each option after the one that `place` returns for it, or at the end."""
    names, options = list(names), list(options)
    known = {*names, *(option.name for option in options)}
    following: dict[str | None, list[str]] = {}
    for option in options:
        before = place(option)
        following.setdefault(before if before in known else None, []).append(option.name)

    def chain(name: str) -> Iterator[str]:
        yield name
        for option in following.get(name, ()):
            yield from chain(option)

    return [each for name in (*names, *following.get(None, ())) for each in chain(name)]
