"""What a data set is to the rest of Velodrome: a description that costs nothing, and a way to its examples.

Nothing here, nor in a data set's module, imports numpy before examples are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from velodrome.errors import BadRequest, VelodromeError

if TYPE_CHECKING:
    from velodrome.data.splits import Splits

#: Called while files come in: bytes so far, bytes in all, and what they are.
Progress = Callable[[int, int, str], None]


class DataError(VelodromeError):
    """The files of a data set could not be had, or are not what they should be."""


@dataclass(frozen=True)
class Description:
    """What is known of a data set without opening it, for a given share of validation examples."""

    name: str
    title: str
    licence: str
    homepage: str
    train: int
    validation: int
    test: int
    #: Height, width, channels.
    input_shape: tuple[int, int, int]
    classes: int


class DataSet(Protocol):
    """One entry of the catalogue."""

    @property
    def name(self) -> str: ...

    def describe(self, validation: float) -> Description: ...

    def prepare(self, progress: Progress | None) -> None:
        """Bring everything to this machine that `load` reads."""

    def load(self, seed: int, validation: float) -> Splits: ...


def held_out(total: int, share: float) -> int:
    """How many of `total` examples a share is: at least one if any is asked for, and never all."""
    if not 0 <= share < 1:
        raise BadRequest(f"--validation {share}: give a share of the training set from 0 up to, not including, 1")
    count = max(1, round(total * share)) if share else 0
    if count >= total:
        raise BadRequest(f"--validation {share}: leaves none of {total:,} examples to train on; choose a smaller one")
    return count
